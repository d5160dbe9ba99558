"""Runs as Ray tasks: on a cluster that runs already, or on this host alone."""

import logging
import threading
from collections.abc import Sequence
from typing import Any

from headcount.config import Config
from headcount.errors import RequestError
from headcount.study.plan import Point

POLL_SECONDS = 1.0


def run_on_ray(
    points: Sequence[Point], stop: threading.Event, address: str | None
) -> dict[str, str]:
    """Run every point; return, by run id, why one ended that could not record it.

    A task whose process or node dies fails that run alone; whether it is tried again is not Ray's to
    decide (`retries=`).
    """
    try:
        import ray
    except ModuleNotFoundError:
        raise RequestError(
            "hydra/launcher=ray: Ray is not installed; pip install 'headcount[ray]'"
        ) from None
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            include_dashboard=False,
            logging_level=logging.ERROR,
        )
    except ConnectionError as error:
        raise RequestError(f"hydra.launcher.address={address}: {error}") from None
    try:
        return _run(ray, points, stop)
    finally:
        ray.shutdown()


def _run(ray: Any, points: Sequence[Point], stop: threading.Event) -> dict[str, str]:
    # A process a run: what one leaves behind in memory never reaches the next.
    remote = ray.remote(max_retries=0, max_calls=1)(_execute)
    reasons: dict[str, str] = {}
    at_work: dict[Any, Point] = {}
    for point in points:
        config, threads = point.config.model_dump(mode="json"), point.config.trainer.threads
        at_work[remote.options(num_cpus=threads).remote(config)] = point
    try:
        while at_work:
            ended, _ = ray.wait(list(at_work), timeout=POLL_SECONDS)
            for task in ended:
                point = at_work.pop(task)
                try:
                    ray.get(task)
                except ray.exceptions.TaskCancelledError:
                    continue
                except Exception as error:
                    reasons[point.run_id] = str(error).strip().splitlines()[-1]
            if stop.is_set():
                for task in at_work:
                    ray.cancel(task, force=False)  # what has not begun never does
    except BaseException:
        for task in at_work:
            ray.cancel(task, force=False)  # raises KeyboardInterrupt in it: the run saves itself
        ray.wait(list(at_work), num_returns=len(at_work), timeout=30)
        raise
    return reasons


def _execute(config: dict[str, Any]) -> None:
    from headcount.study.run import execute

    execute(Config.model_validate(config))
