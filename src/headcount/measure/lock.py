"""One measurement at a time on a host: two at once would each time the other's noise."""

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK_NAME = "headcount-measure.lock"


@contextmanager
def host_lock(waiting: Callable[[], None] = lambda: None) -> Iterator[float]:
    """Hold the host's measuring lock; yields the seconds waited for it.

    `waiting` is called once if another process holds it. The lock lies in the system's temporary
    folder and goes with the process that holds it, however that ends.
    """
    started = time.monotonic()
    descriptor = _open(Path(tempfile.gettempdir()) / LOCK_NAME)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield time.monotonic() - started
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    """The lock file, made if missing. Reading is enough to lock, so that users can share the file
    of whoever came first (a sticky folder refuses O_CREAT on another user's file)."""
    try:
        return os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
