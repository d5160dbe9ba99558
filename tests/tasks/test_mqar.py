"""MQAR against its published definition (Zoology, Arora et al. 2023), and its compositional form.

Each statistical test alarms falsely with a probability below 1e-5.
"""

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from headcount.tasks.base import IGNORE

ALPHA = 1e-5


@pytest.fixture
def batches(task_of):
    task = task_of("mqar", n_pairs="[8]", batch_size=512)
    return [task.train_batch(0, step) for step in range(8)]


def test_every_sequence_is_pairs_then_each_key_once_more(batches):
    for batch in batches[:2]:
        for inputs, targets in zip(batch.inputs, batch.targets, strict=True):
            keys, values = inputs[:16:2], inputs[1:16:2]
            assert len(set(keys.tolist())) == len(set(values.tolist())) == 8
            assert keys.min() >= 1
            assert keys.max() < 32 <= values.min()
            assert values.max() < 64
            answer = dict(zip(keys.tolist(), values.tolist(), strict=True))
            later = inputs[16:]
            assert sorted(later[later != 0].tolist()) == sorted(keys.tolist())
            assert (later[1::2] == 0).all()  # even offsets alone
            for place in range(64):
                asked = place >= 16 and inputs[place] != 0
                assert targets[place] == (answer[int(inputs[place])] if asked else IGNORE)


def test_keys_and_values_are_drawn_evenly(batches):
    inputs = torch.cat([b.inputs for b in batches])
    for tokens, low, high in ((inputs[:, 0], 1, 32), (inputs[:, 1], 32, 64)):
        counts = torch.bincount(tokens, minlength=64)[low:high].double()
        expected = len(tokens) / (high - low)
        statistic = ((counts - expected) ** 2 / expected).sum().item()
        assert statistic < chi2.isf(ALPHA, high - low - 1)


@pytest.mark.parametrize("power", [0.01, 1.0])
def test_the_first_keys_distance_follows_the_power_law(task_of, power):
    """The place of the key drawn first is p(i) ∝ a·i^(a−1) itself, i from 1."""
    task = task_of("mqar", n_pairs="[8]", batch_size=4096, power=power)
    inputs = task.train_batch(0, 0).inputs
    again = (inputs[:, 16:] == inputs[:, :1]).int().argmax(dim=1) // 2  # (4096,)
    i = np.arange(1, 25)
    p = power * i ** (power - 1)
    expected = 4096 * p / p.sum()
    counts = np.bincount(again.numpy(), minlength=24)
    assert ((counts - expected) ** 2 / expected).sum() < chi2.isf(ALPHA, 23)


def test_difficulties_come_in_equal_parts_and_are_slices(task_of):
    task = task_of("mqar", batch_size=60)
    batch = task.train_batch(0, 0)
    assert batch.scored.sum(dim=1).tolist() == [4, 8, 16] * 20
    masks = task.slices(batch)
    assert [int(masks[f"pairs_{k}"].sum()) for k in (4, 8, 16)] == [80, 160, 320]
    row, place = batch.scored.nonzero(as_tuple=True)
    for mask_name, low, high in (("distance_0_15", 0, 16), ("distance_16_63", 16, 64)):
        for r, q, inside in zip(
            row.tolist(), place.tolist(), masks[mask_name].tolist(), strict=True
        ):
            value_at = batch.inputs[r].tolist().index(int(batch.targets[r, q]))
            assert inside == (low <= q - value_at < high)


def test_compositional_keys_are_a_grid_and_each_pair_is_asked_once(task_of):
    task = task_of("compositional_mqar", n_pairs="[9]")
    batch = task.train_batch(0, 0)
    for inputs, targets in zip(batch.inputs, batch.targets, strict=True):
        first, second, values = inputs[:27:3], inputs[1:27:3], inputs[2:27:3]
        assert 1 <= first.min() <= first.max() < 32 <= second.min()
        assert second.max() < 64 <= values.min()
        assert len(set(values.tolist())) == 9
        pairs = set(zip(first.tolist(), second.tolist(), strict=True))
        assert pairs == {(a, x) for a in set(first.tolist()) for x in set(second.tolist())}
        assert len(pairs) == 9
        answer = {
            (a, x): v
            for a, x, v in zip(first.tolist(), second.tolist(), values.tolist(), strict=True)
        }
        asked = (targets != IGNORE).nonzero().flatten().tolist()
        found = {(int(inputs[q - 1]), int(inputs[q])): int(targets[q]) for q in asked}
        assert found == answer
        assert all((q - 1 - 27) % 3 == 0 for q in asked)
    orders = {tuple(row[:27:3].argsort(stable=True).tolist()) for row in batch.inputs}
    assert len(orders) > 50  # shuffled: the place does not tell the pair
