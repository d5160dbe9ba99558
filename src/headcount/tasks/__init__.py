"""The tasks, one file each: data, loss, metric and slices. A task knows nothing of models."""

from typing import Any

from headcount.config import Config
from headcount.tasks.base import Batch, Task
from headcount.tasks.endpoint_selection import EndpointSelectionTask
from headcount.tasks.moby_dick import MobyDickTask

TASKS: dict[str, Any] = {
    "endpoint_selection": EndpointSelectionTask,
    "moby_dick": MobyDickTask,
}


def build_task(config: Config) -> Task:
    """The task that a configuration names, its data at hand."""
    task: Task = TASKS[config.task.name](config.task)
    return task


__all__ = ["Batch", "Task", "build_task"]
