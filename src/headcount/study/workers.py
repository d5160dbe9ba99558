"""Worker processes: each runs one run after another, and dies with the process that started it."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from headcount.study.plan import Point

SPAWN = multiprocessing.get_context("spawn")  # a forked child could not start torch's threads anew

POLL_SECONDS = 0.5


def run_in_processes(
    points: Sequence[Point], stop: threading.Event, n_workers: int | None
) -> dict[str, str]:
    """Run every point; return, by run id, why one ended that could not record it. A dead worker fails
    its own run alone.

    KeyboardInterrupt stops handing out runs, lets those at work save themselves, and is raised again;
    a second one ends the workers at once.
    """
    waiting = list(points)[::-1]
    reasons: dict[str, str] = {}
    workers: list[Worker] = []
    threads = max(p.config.trainer.threads for p in points)
    size = min(n_workers or default_workers(threads), len(points))
    try:
        while True:
            while waiting and not stop.is_set():
                idle = next((w for w in workers if w.point is None), None)
                if idle is None and len(workers) == size:
                    break
                if idle is None:
                    workers.append(idle := Worker.start(threads))
                idle.give(waiting.pop())
            busy = [w for w in workers if w.point is not None]
            if not busy:
                return reasons
            for worker in busy:
                if worker.pipe in wait([w.pipe for w in busy], timeout=POLL_SECONDS):
                    point, reason = worker.take()
                    if reason is not None:
                        reasons[point.run_id] = reason
                    if not worker.process.is_alive():
                        workers.remove(worker)
    except KeyboardInterrupt:
        busy = [w for w in workers if w.point is not None]
        for worker in busy:
            worker.process.terminate()
        with contextlib.suppress(KeyboardInterrupt):
            for worker in busy:
                wait([worker.pipe, worker.process.sentinel])
        raise
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.join()


def default_workers(threads: int) -> int:
    """As many processes as this process may use cores, each with `threads` of them."""
    return max(1, usable_cores() // threads)


def usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass
class Worker:
    """A process, the pipe to it, and a second pipe whose breaking tells it that we are gone."""

    process: SpawnProcess
    pipe: Connection
    lifeline: Connection
    point: Point | None = None

    @classmethod
    def start(cls, threads: int) -> "Worker":
        ours, theirs = SPAWN.Pipe()
        watched, lifeline = SPAWN.Pipe(duplex=False)
        process = SPAWN.Process(target=_work, args=(theirs, watched), daemon=True)
        with _threads_fixed(threads):
            process.start()
        theirs.close()
        watched.close()
        return cls(process, ours, lifeline)

    def give(self, point: Point) -> None:
        self.point = point
        self.pipe.send(point.config)

    def take(self) -> tuple[Point, str | None]:
        """The point that has ended, and why if its record cannot say it."""
        point, self.point = self.point, None
        assert point is not None
        try:
            reason: str | None = self.pipe.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            reason = died(self.process.exitcode)
        return point, reason


def died(exitcode: int | None) -> str:
    """Why a run's process ended without a word."""
    if exitcode is not None and exitcode < 0:
        name = signal.Signals(-exitcode).name
        hint = ", as when memory runs out" if name == "SIGKILL" else ""
        return f"the run's process was ended by {name}{hint}"
    return f"the run's process ended early with status {exitcode}"


@contextmanager
def _threads_fixed(threads: int) -> Iterator[None]:
    """Processes started in the block have their threads fixed before any library counts the cores."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, str(threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _work(pipe: Connection, lifeline: Connection) -> None:
    """A worker's life: take a configuration, run it, answer, until the pipe closes."""
    os.setsid()  # Ctrl-C reaches the parent alone, which tells us by SIGTERM
    threading.Thread(target=_die_with_parent, args=(lifeline,), daemon=True).start()
    from headcount.study.run import execute

    while True:
        try:
            config = pipe.recv()
        except EOFError:
            return
        try:
            execute(config)
            pipe.send(None)
        except Exception as error:
            pipe.send(f"{type(error).__name__}: {error}")


def _die_with_parent(lifeline: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        lifeline.recv()
    os._exit(1)
