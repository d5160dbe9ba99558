"""Runs as SLURM jobs: one array, a job a run, each with as many CPUs as its threads.

submitit writes and submits the jobs; a preempted job asks to be queued again, and its run goes on from
its checkpoint. What became of a run stands in its record. So this side only waits until the queue no
longer knows the jobs, which needs no accounting database.
"""

import subprocess
import threading
from collections.abc import Sequence
from typing import Any

from headcount.config import Config
from headcount.errors import HeadcountError, RequestError
from headcount.study.plan import Point
from headcount.study.store import Study

POLL_SECONDS = 2.0


class Job:
    """What a SLURM job does; submitit pickles it, and calls `checkpoint` when the job must make room
    before its end."""

    def __call__(self, config: dict[str, Any]) -> None:
        from headcount.study.run import execute

        execute(Config.model_validate(config))

    def checkpoint(self, config: dict[str, Any]) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, config)


def run_on_slurm(
    points: Sequence[Point], stop: threading.Event, options: dict[str, Any]
) -> dict[str, str]:
    """Run every point; return, by run id, why one ended that could not record it."""
    try:
        from submitit import SlurmExecutor
    except ModuleNotFoundError:
        raise RequestError(
            "hydra/launcher=slurm: submitit is not installed; pip install 'headcount[slurm]'"
        ) from None
    logs = Study.of(points[0].config).folder / "slurm"
    try:
        executor = SlurmExecutor(folder=logs)
    except RuntimeError:
        raise RequestError(
            "hydra/launcher=slurm: there is no sbatch on this host; valid: in_process, processes, ray"
        ) from None
    threads = max(p.config.trainer.threads for p in points)
    executor.update_parameters(
        cpus_per_task=threads,
        setup=[f"export OMP_NUM_THREADS={threads} MKL_NUM_THREADS={threads}"],
        stderr_to_stdout=True,
        **{key: value for key, value in options.items() if value is not None},
    )
    jobs = executor.map_array(Job(), [p.config.model_dump(mode="json") for p in points])
    number = jobs[0].job_id.split("_")[0]
    try:
        while _queued(number):
            if stop.wait(POLL_SECONDS):
                # Those that wait never start; those at work end by themselves.
                _slurm("scancel", "--state=PENDING", number)
                threading.Event().wait(POLL_SECONDS)
    except BaseException:
        _slurm("scancel", number)  # SIGTERM first: the runs save themselves
        raise
    return {}


def _queued(number: str) -> bool:
    """Whether SLURM still has jobs of the array: waiting, running or queued again."""
    return bool(_slurm("squeue", "--noheader", "--format=%i", "--jobs", number).strip())


def _slurm(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if (
        done.returncode and "Invalid job id" not in done.stderr
    ):  # an array that is over is forgotten
        raise HeadcountError(f"{command[0]}: {' '.join(done.stderr.split())}")
    return done.stdout
