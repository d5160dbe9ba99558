"""A trained run to look into, small enough to train in a second."""

from pathlib import Path

import pytest

from headcount.hydra_app import compose
from headcount.study.run import execute
from headcount.study.store import Study

INDUCTION = (
    "task=induction", "task.vocab_size=8", "task.seq_len=12", "task.batch_size=16",
    "task.eval_sequences=32",
)  # fmt: skip
TINY = (
    "model.d_model=16", "model.n_layers=2", "optim.lr=1e-2",
    "optim.warmup_steps=4", "trainer.max_steps=40", "trainer.val_every_steps=20",
    "measure.contexts=[16]", "measure.repeats=3", "logger=none", "study=s",
)  # fmt: skip


def train(results: Path, *overrides: str, base: tuple[str, ...] = INDUCTION) -> Path:
    """Train a tiny run; its folder."""
    config = compose([*base, *TINY, f"paths.results={results}", *overrides])
    record = execute(config)
    assert record is not None and record.status == "completed", record
    return Study.of(config).run_folder(record.run_id)


@pytest.fixture(scope="session")
def mha(tmp_path_factory) -> Path:
    """A run of mha h4."""
    return train(tmp_path_factory.mktemp("mha"), "model.n_heads=4")


@pytest.fixture(scope="session")
def gqa(tmp_path_factory) -> Path:
    """A run of gqa h4/kv2."""
    return train(tmp_path_factory.mktemp("gqa"), "model.n_heads=4", "model.n_kv_heads=2")
