"""What all tests share: a small configuration, and a home without accounts."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ.update(CI="true", WANDB_MODE="offline")

SMALL = (
    "logger=none",
    "model.d_model=16",
    "model.n_layers=1",
    "task.seq_len=16",
    "task.batch_size=4",
    "task.eval_tokens=256",
    "trainer.max_steps=20",
    "trainer.val_every_steps=5",
    "optim.warmup_steps=4",
    "measure.contexts=[16]",
    "measure.repeats=3",
)
"""Overrides under which a run takes well under a second."""


@pytest.fixture(autouse=True)
def _no_accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep W&B's caches and settings inside the test's own folder."""
    for name in ("WANDB_CACHE_DIR", "WANDB_DATA_DIR", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "wandb-home"))


@pytest.fixture(autouse=True)
def _fresh_hydra() -> None:
    """Forget what an earlier test composed: Hydra keeps it for the whole process."""
    from hydra.core.global_hydra import GlobalHydra

    GlobalHydra.instance().clear()


@pytest.fixture
def small(tmp_path: Path) -> Callable:
    """Compose a small configuration with further overrides; results go to the test's folder."""
    from headcount.hydra_app import compose

    return lambda *overrides: compose([*SMALL, f"paths.results={tmp_path}", *overrides])
