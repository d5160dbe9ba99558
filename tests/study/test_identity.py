"""A run is what its scientific configuration says: what changes its id, and what does not."""

import pytest

from headcount.study.identity import run_id


@pytest.mark.parametrize(
    "override",
    [
        "study=other",
        "logger=csv",
        "trainer.threads=2",
        "trainer.accelerator=auto",
        "measure.repeats=5",
        "task.eval_batch_size=3",
        "account.dtype=bf16",
        "attention=gqa model.kv_group_size=1",  # MHA with 4 heads is GQA with 4 KV heads
        "model.d_head=4",
        "model.n_kv_heads=4",
        "model.d_ff=48",  # what the rule gives at d_model 16
    ],
)
def test_what_leaves_a_run_the_same(small, override):
    assert run_id(small(*override.split())) == run_id(small())


@pytest.mark.parametrize(
    "override",
    [
        "seed=1",
        "model.n_heads=2",
        "model.n_kv_heads=2",
        "model.d_head=8",
        "model.dropout=0.1",
        "task.seq_len=8",
        "optim.lr=1e-3",
        "trainer.max_steps=21",
        "trainer.precision=bf16-mixed",
        "trainer.val_every_steps=4",
    ],
)
def test_what_makes_another_run(small, override):
    assert run_id(small(override)) != run_id(small())


def test_ids_are_stable(small):
    """A results folder of an earlier day is found again: the id is no accident of a process."""
    assert run_id(small()) == run_id(small())
    assert len(run_id(small())) == 12
    assert int(run_id(small()), 16) >= 0
