"""Composing a task with a few overrides, and models of a handful of weights."""

from collections.abc import Callable

import pytest

from headcount.hydra_app import compose
from headcount.model import Transformer
from headcount.tasks import Task, build_task


@pytest.fixture
def task_of() -> Callable[..., Task]:
    """The task of that name with overrides of its keys: `task_of("mqar", seq_len=32)`."""
    return lambda name, **keys: build_task(config_of(name, **keys))


@pytest.fixture
def model_of() -> Callable[..., Transformer]:
    """A small untrained model of a task."""

    def build(name: str, **keys: object) -> Transformer:
        return Transformer(config_of(name, **keys).shape, seed=3)

    return build


def config_of(name: str, **keys: object):
    overrides = [f"task.{key}={value}" for key, value in keys.items()]
    size = ["model.d_model=16", "model.n_layers=1", "model.n_heads=2"]
    return compose([f"task={name}", *size, "logger=none", *overrides])
