"""Endpoint selection: the inputs are exactly those of the definition."""

import itertools

import pytest
import torch

from headcount.tasks import build_task
from headcount.tasks.base import IGNORE


@pytest.fixture
def config(small):
    # tests share `small`'s text settings; this task has none of them
    from headcount.hydra_app import compose

    return compose(["task=endpoint_selection", "task.n_vertices=5", "logger=none"])


def test_all_edges_with_both_indices_and_the_right_answer(config):
    task = build_task(config)
    rows = {
        tuple(i): int(t[-1])
        for i, t in zip(task.inputs.tolist(), task.targets.tolist(), strict=True)
    }
    expected = {
        (u, v, 5 + i, 7): (u, v)[i] for u, v in itertools.permutations(range(5), 2) for i in (0, 1)
    }
    assert rows == expected
    assert (task.targets[:, :-1] == IGNORE).all()
    assert config.task.n_inputs == 8


def test_batches_cover_everything_where_there_is_room(config):
    task = build_task(config)
    assert len(task.train_batch(0, 0).inputs) == 40
    assert sum(b.n_scored for b in task.eval_batches("test")) == 40
    slices = task.slices(task.train_batch(0, 0))
    assert [int(m.sum()) for m in slices.values()] == [20, 20]


def test_smaller_batches_are_drawn_without_repeats_by_seed_and_step(config):
    task = build_task(config)
    task.config = task.config.model_copy(update={"batch_size": 16})
    batch = task.train_batch(3, 7)
    assert len({tuple(row) for row in batch.inputs.tolist()}) == 16
    assert torch.equal(batch.inputs, task.train_batch(3, 7).inputs)
    assert not torch.equal(batch.inputs, task.train_batch(3, 8).inputs)
