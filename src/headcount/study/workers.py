"""Worker processes: each runs one job after another, and dies with the process that started it."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.types import TaskFunction
from omegaconf import DictConfig

SPAWN = multiprocessing.get_context("spawn")  # a forked child could not start torch's threads anew


def run_jobs(
    task: TaskFunction,
    configs: Sequence[DictConfig],
    overrides: Sequence[Sequence[str]],
    n_workers: int | None,
) -> list[JobReturn]:
    """Run every job; return how each ended, in order. A dead worker fails its own job alone.

    KeyboardInterrupt (Ctrl-C, or SIGTERM) stops handing out jobs, lets the runs at work save
    themselves, and is raised again; a second one ends the workers at once.
    """
    returns = [JobReturn(overrides=o, cfg=c) for o, c in zip(overrides, configs, strict=True)]
    waiting = list(range(len(configs)))[::-1]
    workers: list[Worker] = []
    size = min(n_workers or default_workers(configs[0].trainer.threads), len(configs))
    before = signal.signal(signal.SIGTERM, _as_keyboard_interrupt)
    try:
        while waiting or any(w.job is not None for w in workers):
            while waiting and len(workers) < size:
                workers.append(Worker.start(task))
            for worker in workers:
                if worker.job is None and waiting:
                    worker.give(waiting.pop(), configs)
            ready = wait([w.pipe for w in workers])
            for worker in [w for w in workers if w.pipe in ready]:
                job, worker.job = worker.job, None
                try:
                    answer: Any = worker.pipe.recv()
                except EOFError:
                    worker.process.join()
                    workers.remove(worker)
                    answer = RuntimeError(f"worker died ({worker.process.exitcode})")
                if job is not None:
                    failed = isinstance(answer, BaseException)
                    returns[job].status = JobStatus.FAILED if failed else JobStatus.COMPLETED
                    returns[job].return_value = answer
        return returns
    except KeyboardInterrupt:
        for worker in workers:
            if worker.job is not None:
                worker.process.terminate()
        with contextlib.suppress(KeyboardInterrupt):
            for worker in workers:
                if worker.job is not None:
                    wait([worker.pipe, worker.process.sentinel])
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
        for worker in workers:
            worker.process.kill()
            worker.process.join()


def default_workers(threads: int) -> int:
    """As many processes as this process may use cores, each with `threads` of them."""
    return max(1, len(os.sched_getaffinity(0)) // threads)


@dataclass
class Worker:
    """A process, the pipe to it, and a second pipe whose breaking tells it that we are gone."""

    process: SpawnProcess
    pipe: Connection
    lifeline: Connection
    job: int | None = None

    @classmethod
    def start(cls, task: TaskFunction) -> "Worker":
        ours, theirs = SPAWN.Pipe()
        watched, lifeline = SPAWN.Pipe(duplex=False)
        process = SPAWN.Process(target=_work, args=(task, theirs, watched), daemon=True)
        process.start()
        theirs.close()
        watched.close()
        return cls(process, ours, lifeline)

    def give(self, job: int, configs: Sequence[DictConfig]) -> None:
        self.job = job
        self.pipe.send(configs[job])


def _work(task: TaskFunction, pipe: Connection, lifeline: Connection) -> None:
    """A worker's life: take a configuration, run it, answer, until the pipe closes."""
    os.setsid()  # Ctrl-C reaches the parent alone, which tells us by SIGTERM
    threading.Thread(target=_die_with_parent, args=(lifeline,), daemon=True).start()
    from hydra.core.hydra_config import HydraConfig

    while True:
        try:
            config = pipe.recv()
        except EOFError:
            return
        HydraConfig.instance().set_config(config)
        job = config.copy()
        with contextlib.suppress(Exception):
            job._set_flag("struct", False)
        job.pop("hydra")
        try:
            pipe.send(task(job))
        except KeyboardInterrupt:
            return  # the run has saved itself and said so in its record
        except Exception as error:
            pipe.send(RuntimeError(f"{type(error).__name__}: {error}"))


def _die_with_parent(lifeline: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        lifeline.recv()
    os._exit(1)


def _as_keyboard_interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt
