"""Claims: which process works on a run, on any file system that hosts share.

    runs/<run_id>/.claim.3      who holds the run (JSON); its modification time is the last heartbeat

A claim is made by creating the file of the next number, which exactly one process can do (O_EXCL;
locks of the kernel do not reach every shared file system). A dead holder's claim falls: at once where
its process can be looked up, after EXPIRY seconds without a heartbeat where it cannot. Whoever was
only asleep and wakes up finds that a higher number stands, and must let go (`Claim.holds`).
"""

import json
import os
import platform
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import psutil

BEAT = 10.0
EXPIRY = 60.0
"""Seconds between heartbeats, and without one after which a holder that cannot be looked up is dead."""

CLOCK_TOLERANCE = 2.0
"""Seconds by which a process's start time may be read differently (the system's clock is set)."""


@dataclass(frozen=True)
class Owner:
    """A process somewhere: `machine` tells process tables apart, `token` this claim from others."""

    host: str
    machine: str
    pid: int
    started: float
    token: str

    @classmethod
    def this_process(cls) -> "Owner":
        pid = os.getpid()
        return cls(platform.node(), machine(), pid, _started(pid) or 0.0, uuid.uuid4().hex)

    def is_gone(self) -> bool | None:
        """Whether the process has ended; None where it runs on another machine and cannot be seen."""
        if self.machine != machine():
            return None
        started = _started(self.pid)
        return started is None or abs(started - self.started) > CLOCK_TOLERANCE


@dataclass(frozen=True)
class Claim:
    """A run that this process holds."""

    path: Path
    owner: Owner

    def holds(self) -> bool:
        """Whether the claim still stands; not, where this process slept so long that another took
        the run over."""
        latest = _latest(self.path.parent)
        return latest == self.path and read_owner(latest) == self.owner


def holder(folder: Path) -> Owner | None:
    """The live process that holds the run in `folder`, if there is one."""
    latest = _latest(folder)
    return _holder(latest) if latest else None


@contextmanager
def claim(folder: Path) -> Iterator[Claim | None]:
    """Hold the run in `folder` while the block lasts; None where another live process has it."""
    ours = _take(folder)
    if ours is None:
        yield None
        return
    done = threading.Event()
    heart = threading.Thread(target=_beat, args=(ours.path, done), daemon=True)
    heart.start()
    try:
        yield ours
    finally:
        done.set()
        heart.join()
        if ours.holds():
            ours.path.unlink(missing_ok=True)


def _take(folder: Path) -> Claim | None:
    folder.mkdir(parents=True, exist_ok=True)
    latest = _latest(
        folder
    )  # looked up once: the number taken is the next to the claim that was judged
    if latest and _holder(latest):
        return None
    ours = Claim(folder / f".claim.{_number(latest) + 1 if latest else 1}", Owner.this_process())
    try:
        descriptor = os.open(ours.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return None  # another process was faster
    with os.fdopen(descriptor, "w") as file:
        json.dump(asdict(ours.owner), file)
    others = [path for path in folder.glob(".claim.*") if path != ours.path]
    if any(map(_holder, others)):  # ours was made from a view of the folder that was out of date
        ours.path.unlink(missing_ok=True)
        return None
    for other in others:
        other.unlink(missing_ok=True)
    return ours


def _holder(path: Path) -> Owner | None:
    """The live process behind a claim."""
    owner = read_owner(path)
    gone = owner.is_gone() if owner else None
    if gone is None:
        gone = _age(path) > EXPIRY
    return None if gone else owner or Owner("another host", "", 0, 0.0, "")


def _latest(folder: Path) -> Path | None:
    return max(folder.glob(".claim.*"), key=_number, default=None)


def _number(path: Path) -> int:
    return int(path.name.rpartition(".")[2])


def read_owner(path: Path) -> Owner | None:
    """Who made a claim; None where the file is gone or not written yet."""
    try:
        return Owner(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _age(path: Path) -> float:
    """Seconds since the last heartbeat, by the clock of the file system itself: hosts' clocks differ."""
    now = path.with_name(f".now.{uuid.uuid4().hex}")
    try:
        now.touch()
        return now.stat().st_mtime - path.stat().st_mtime
    except FileNotFoundError:
        return EXPIRY + 1  # the claim was given up meanwhile
    finally:
        now.unlink(missing_ok=True)


def _beat(path: Path, done: threading.Event) -> None:
    while not done.wait(BEAT):
        with suppress(OSError):
            os.utime(path)


@cache
def machine() -> str:
    """Names the process table that this process stands in: the host, its boot, the PID namespace."""
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _started(pid: int) -> float | None:
    """When a process began; None if there is none, or it has ended and is only not cleared away."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.NoSuchProcess:
        return None
