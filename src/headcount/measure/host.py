"""What the host was doing while we measured: load, neighbours, frequency, temperature. No torch."""

import os
import platform
import time
from typing import Any

import psutil


class HostWatch:
    """Compares the whole host's CPU time with our own, lap by lap."""

    def __init__(self) -> None:
        self._own = psutil.Process()
        self._start = self._last = self._reading()
        self._worst = 0.0

    def lap(self) -> None:
        """A stretch of measuring ends here."""
        now = self._reading()
        self._worst = max(self._worst, _others(self._last, now))
        self._last = now

    def summary(self) -> dict[str, float]:
        """Cores that everything but this process used: over all laps, and in the worst of them."""
        return {
            "co_running_cores": round(_others(self._start, self._last), 3),
            "co_running_cores_worst": round(self._worst, 3),
        }

    def _reading(self) -> tuple[float, float, float]:
        """Wall, busy over all cores, and our own CPU time, in seconds."""
        host, own = psutil.cpu_times(), self._own.cpu_times()
        idle = host.idle + getattr(host, "iowait", 0.0)
        # Guest time is part of user time already.
        total = sum(host) - getattr(host, "guest", 0.0) - getattr(host, "guest_nice", 0.0)
        return time.monotonic(), total - idle, own.user + own.system


def _others(before: tuple[float, float, float], after: tuple[float, float, float]) -> float:
    """Cores that other processes used between two readings."""
    wall, busy, own = (b - a for a, b in zip(before, after, strict=True))
    return max(0.0, busy - own) / wall if wall > 0 else 0.0


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
