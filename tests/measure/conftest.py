"""Configurations small enough to measure in a moment, and one measured study for all to read."""

import copy
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headcount.config import Config, parse
from headcount.measure.wave import cost_wave
from headcount.study.records import Cost
from headcount.study.store import Study

RAW: dict[str, Any] = {
    "study": "costs",
    "seed": 0,
    "model": {
        "attention": "mha",
        "d_model": 32,
        "n_layers": 2,
        "n_heads": 8,
        "mlp": "swiglu",
        "position": "rope",
        "norm": "rmsnorm",
        "dropout": 0.0,
        "tie_embeddings": False,
        "backend": "sdpa",
    },
    "task": {
        "name": "moby_dick",
        "batch_size": 4,
        "seq_len": 16,
        "eval_batch_size": 4,
        "eval_tokens": 64,
    },
    "control": {"name": "fixed_d_model"},
    "optim": {
        "lr": 1e-3,
        "weight_decay": 0.1,
        "beta1": 0.9,
        "beta2": 0.95,
        "warmup_steps": 1,
        "min_lr_ratio": 0.1,
        "grad_clip": 1.0,
    },
    "trainer": {
        "max_steps": 10,
        "accumulate_grad_batches": 1,
        "val_every_steps": 5,
        "precision": "32-true",
        "accelerator": "cpu",
        "devices": 1,
        "strategy": "auto",
        "threads": 1,
    },
    "measure": {
        "contexts": [16, 64],
        "batch_sizes": [1, 2],
        "dtype": "fp32",
        "device": "cpu",
        "repeats": 3,
        "warmup": 1,
        "threads": 1,
    },
    "account": {"dtype": "fp32"},
    "logger": {"name": "none"},
    "paths": {"results": "results"},
}


def make(**changes: Any) -> Config:
    """The small configuration with changes given as section__key=value."""
    raw = copy.deepcopy(RAW)
    for path, value in changes.items():
        *sections, key = path.split("__")
        place = raw
        for section in sections:
            place = place[section]
        place[key] = value
    return parse(raw)


@pytest.fixture(scope="session")
def config() -> Callable[..., Config]:
    return make


@pytest.fixture(autouse=True, scope="session")
def own_lock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A temporary folder of our own, so that no measurement outside the tests holds them up."""
    patch = pytest.MonkeyPatch()
    patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("host")))
    yield
    patch.undo()


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study(tmp_path_factory.mktemp("study") / "costs")


@pytest.fixture(scope="session")
def layouts() -> list[Config]:
    """Eight heads over 8, 2 and 1 KV heads."""
    return [
        make(),
        make(model__attention="gqa", model__n_kv_heads=2),
        make(model__attention="mqa"),
    ]


@pytest.fixture(scope="session")
def measured(study: Study, layouts: list[Config]) -> dict[str, Cost]:
    """The cost records of `layouts`, measured together once for all tests."""
    return cost_wave(study, layouts)


@pytest.fixture
def empty_study(tmp_path: Path) -> Study:
    return Study(tmp_path / "costs")
