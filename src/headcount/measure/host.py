"""What the host was doing while we measured: load, neighbours, frequency, temperature. No torch."""

import os
import platform
import time
from typing import Any

import psutil

BUSY_CORES = 0.25
"""Cores kept busy by other processes from which a measurement is marked as disturbed."""


class HostWatch:
    """Compares the whole host's CPU time with our own between two readings."""

    def __init__(self) -> None:
        self._own = psutil.Process()
        self._last = self._reading()

    def co_running_cores(self) -> float:
        """Cores that everything but this process used, on average, since the last call."""
        now = self._reading()
        (wall, busy, own), self._last = (b - a for a, b in zip(self._last, now, strict=True)), now
        return max(0.0, busy - own) / wall if wall > 0 else 0.0

    def _reading(self) -> tuple[float, float, float]:
        """Wall, busy over all cores, and our own CPU time, in seconds."""
        host, own = psutil.cpu_times(), self._own.cpu_times()
        idle = host.idle + getattr(host, "iowait", 0.0)
        # Guest time is part of user time already.
        total = sum(host) - getattr(host, "guest", 0.0) - getattr(host, "guest_nice", 0.0)
        return time.monotonic(), total - idle, own.user + own.system


def busy_processes(seconds: float = 0.2) -> list[str]:
    """Names of the other processes that use more than half a core over the next `seconds`."""
    others = [p for p in psutil.process_iter(["name"]) if p.pid != os.getpid()]
    before = {p.pid: _cpu_seconds(p) for p in others}
    time.sleep(seconds)
    busy = [p for p in others if _cpu_seconds(p) - before[p.pid] > seconds / 2]
    return sorted(p.info["name"] or "unnamed" for p in busy)


def _cpu_seconds(process: psutil.Process) -> float:
    """CPU time of a process that may have ended or may be another user's."""
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def describe() -> dict[str, Any]:
    """The host as the system tells it; what it does not tell is left out."""
    return {
        "host": platform.node(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load_average": list(os.getloadavg()),
        "busy_processes": busy_processes(),
        **_frequency(),
        **_temperature(),
    }


def _frequency() -> dict[str, Any]:
    """The processor's frequency in MHz, where there is one to read."""
    read = getattr(psutil, "cpu_freq", None)
    frequency = read() if read else None
    return {"cpu_mhz": round(frequency.current)} if frequency else {}


def _temperature() -> dict[str, Any]:
    """The hottest sensor in °C, where there is one to read."""
    read = getattr(psutil, "sensors_temperatures", None)
    sensors = read() if read else {}
    readings = [entry.current for group in sensors.values() for entry in group]
    return {"hottest_celsius": max(readings)} if readings else {}
