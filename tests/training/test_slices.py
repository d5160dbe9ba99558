"""Slices: they add up to the whole, and their intervals hold the truth as often as they say."""

import math

import pytest
import torch

from headcount.model import Transformer
from headcount.tasks import build_task
from headcount.training.evaluation import SlicedMean, evaluate


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_slices_weighted_by_their_counts_give_the_total(small, batch_size):
    config = small(f"task.eval_batch_size={batch_size}", "task.eval_tokens=3001", "task.seq_len=70")
    scored = evaluate(Transformer(config.shape, seed=3), build_task(config), "val")
    for criterion in ("position", "bytes", "in_context"):
        parts = [s for name, s in scored.slices.items() if name.startswith(criterion)]
        assert sum(s.count for s in parts) == 3001
        total = sum(s.loss * s.count for s in parts) / 3001
        assert total == pytest.approx(scored.loss, abs=1e-6)
    assert all(s.low < s.loss < s.high for s in scored.slices.values())


def test_intervals_do_not_depend_on_the_batch_size(small):
    scored = {}
    for size in (1, 7, 64):
        config = small(f"task.eval_batch_size={size}", "task.eval_tokens=3001", "task.seq_len=70")
        scored[size] = evaluate(Transformer(config.shape, seed=3), build_task(config), "val").slices
    for name, found in scored[64].items():
        for size in (1, 7):
            assert scored[size][name].count == found.count
            assert scored[size][name].low == pytest.approx(found.low, rel=1e-5)


def test_intervals_cover_the_truth_when_positions_of_a_sequence_go_together():
    """Losses 1 + a + b with a shared by the 20 positions of a sequence: intervals that took positions
    for independent would hold the truth in about half of the trials."""
    g = torch.Generator().manual_seed(0)
    row = torch.arange(100).repeat_interleave(20)
    covered, trials = 0, 400
    for _ in range(trials):
        metric = SlicedMean(0)
        shared = torch.randn(100, generator=g).repeat_interleave(20)
        losses = 1 + shared + torch.randn(2000, generator=g)
        for part in losses.view(4, 500):  # in batches of 25 sequences
            metric.update(part, torch.zeros(500), row[:500], [])
        mean, error, _, count = (t.item() for t in metric.compute())
        assert count == 2000
        covered += abs(mean - 1) < 1.96 * error
    # 95% in expectation; five standard errors of a share over 400 trials below
    assert covered / trials > 0.95 - 5 * math.sqrt(0.95 * 0.05 / trials)
