"""The tasks, one file each: data, loss, metric and slices. A task knows nothing of models."""

from collections.abc import Callable
from typing import Any

from headcount.config import Config
from headcount.tasks.base import Batch, Task
from headcount.tasks.compositional_mqar import CompositionalMQARTask
from headcount.tasks.digits import DigitsTask
from headcount.tasks.endpoint_selection import EndpointSelectionTask
from headcount.tasks.induction import InductionTask
from headcount.tasks.moby_dick import MobyDickTask
from headcount.tasks.mqar import MQARTask
from headcount.tasks.needle import NeedleTask
from headcount.tasks.neighbour import FarthestPointTask, NearestPointTask
from headcount.tasks.retrieval import RetrievalTask
from headcount.tasks.selective_copy import SelectiveCopyTask
from headcount.tasks.text import OwnTextTask

TASKS: dict[str, Callable[[Any], Task]] = {
    "compositional_mqar": CompositionalMQARTask,
    "digits": DigitsTask,
    "endpoint_selection": EndpointSelectionTask,
    "farthest_point": FarthestPointTask,
    "hf_text": OwnTextTask,
    "induction": InductionTask,
    "moby_dick": MobyDickTask,
    "mqar": MQARTask,
    "nearest_point": NearestPointTask,
    "needle": NeedleTask,
    "retrieval": RetrievalTask,
    "selective_copy": SelectiveCopyTask,
    "text_files": OwnTextTask,
}


def build_task(config: Config) -> Task:
    """The task that a configuration names, its data at hand."""
    return TASKS[config.task.name](config.task)


__all__ = ["Batch", "Task", "build_task"]
