"""Ablation and importance against brute force: weights set by hand, one sequence at a time."""

import copy
import math

import pytest
import torch

from headcount.errors import RequestError
from headcount.heads.ablation import Ablator
from headcount.heads.importance import agreement, importance, normalised
from headcount.heads.record import ABLATIONS, Change
from headcount.heads.sample import sample
from headcount.heads.watching import run, watching_outputs
from headcount.model import Transformer
from headcount.task_config import Induction
from headcount.tasks.induction import InductionTask
from tests.model.shapes import LAYOUTS, small_shape

SEQUENCES = 6


@pytest.fixture
def task():
    return InductionTask(
        Induction(
            name="induction", batch_size=4, seq_len=16, eval_batch_size=4, eval_sequences=10,
            vocab_size=40,
        )
    )  # fmt: skip


def model_of(name: str, **changes) -> Transformer:
    model = Transformer(small_shape(LAYOUTS[name], **changes), seed=3).eval()
    with torch.no_grad():  # larger than at initialisation, so that heads matter
        for block in model.blocks:
            block.attention.out.weight.mul_(4)
    return model


def losses_of(model, task, batch) -> torch.Tensor:
    with torch.no_grad():
        return task.losses(run(model, batch), batch).double()


def brute(model: Transformer, layer: int, heads: list[int]) -> Transformer:
    """A copy whose output projection does not read these heads."""
    other = copy.deepcopy(model)
    d = other.blocks[layer].attention.layout.d_head
    with torch.no_grad():
        for h in heads:
            other.blocks[layer].attention.out.weight[:, h * d : (h + 1) * d] = 0
    return other


def by_hand(whole: torch.Tensor, ablated: torch.Tensor, row: torch.Tensor) -> tuple[float, float]:
    """Mean difference over tokens, and the error of a ratio over sequences, step by step."""
    difference = ablated - whole
    sums = [float(difference[row == r].sum()) for r in row.unique()]
    counts = [int((row == r).sum()) for r in row.unique()]
    mean, n = sum(sums) / sum(counts), len(sums)
    squares = sum((s - mean * c) ** 2 for s, c in zip(sums, counts, strict=True))
    return mean, math.sqrt(n / (n - 1) * squares) / sum(counts)


@pytest.mark.parametrize("name", ["mha", "gqa", "mla"])
def test_zero_ablation_of_heads_and_pairs_is_what_setting_weights_to_zero_does(name, task):
    model = model_of(name)
    batches = sample(task, "val", SEQUENCES)
    singles, pairs = (found["zero"] for found in _both(Ablator(model, task, batches)))
    (batch,) = batches
    row = batch.scored.nonzero()[:, 0]
    whole = losses_of(model, task, batch)
    n_heads = model.shape.layout.n_heads
    for layer in range(2):
        for h in range(n_heads):
            ablated = losses_of(brute(model, layer, [h]), task, batch)
            mean, error = by_hand(whole, ablated, row)
            change = singles[layer][h]
            assert change.loss == pytest.approx(mean, abs=1e-6)
            assert change.high - change.loss == pytest.approx(1.96 * error, rel=1e-3)
            second = task.slices(batch)["second_occurrence"]
            sliced = change.slices["second_occurrence"]
            assert sliced.loss == pytest.approx(float((ablated - whole)[second].mean()), abs=1e-6)
            assert sliced.count == int(second.sum())
    assert len(pairs) == 2 * math.comb(n_heads, 2)
    for pair in pairs[:: max(1, len(pairs) // 6)]:
        ablated = losses_of(brute(model, pair.layer, list(pair.heads)), task, batch)
        assert pair.change.loss == pytest.approx(by_hand(whole, ablated, row)[0], abs=1e-6)


def _both(ablator):
    return ablator.singles(), ablator.pairs()


def test_mean_and_resample_ablation_against_outputs_put_in_by_hand(task):
    model = model_of("gqa")
    batches = sample(task, "val", SEQUENCES)
    (batch,) = batches
    ablator = Ablator(model, task, batches)
    singles = ablator.singles()
    seen = {}
    with torch.no_grad(), watching_outputs(model, lambda at, z: seen.update({at: z})):
        run(model, batch)
    whole = losses_of(model, task, batch)
    layer, head = 1, 5
    shift = ablator._stage(layer).shift
    assert 0 < shift < SEQUENCES
    mean = seen[layer][:, :, head].mean(dim=(0, 1))
    others = torch.stack([seen[layer][(i + shift) % SEQUENCES, :, head] for i in range(SEQUENCES)])
    for kind, instead in (("mean", mean), ("resample", others)):

        def put(at, z, instead=instead):
            if at != layer:
                return None
            z = z.clone()
            z[:, :, head] = instead
            return z

        with torch.no_grad(), watching_outputs(model, put):
            ablated = task.losses(run(model, batch), batch).double()
        expected = float((ablated - whole).mean())
        assert singles[kind][layer][head].loss == pytest.approx(expected, abs=1e-6)


def test_several_batches_give_what_one_gives(task, monkeypatch):
    model = model_of("gqa")
    (one,) = sample(task, "val", SEQUENCES)
    monkeypatch.setattr("headcount.heads.sample.TOKENS", 32)
    many = sample(task, "val", SEQUENCES)
    assert [len(b.inputs) for b in many] == [2, 2, 2]
    a, b = (Ablator(model, task, batches).singles() for batches in ([one], many))
    for kind in ABLATIONS:
        assert a[kind][0][3].loss == pytest.approx(b[kind][0][3].loss, abs=1e-6)
        assert a[kind][1][3].low == pytest.approx(b[kind][1][3].low, abs=1e-6)
    heads = [(0, 1), (1, 2), (1, 3)]
    both = brute(brute(model, 0, [1]), 1, [2, 3])
    expected = float((losses_of(both, task, one) - losses_of(model, task, one)).mean())
    assert Ablator(model, task, many).without(heads).loss == pytest.approx(expected, abs=1e-6)


def test_a_sample_is_the_splits_beginning_and_needs_two_sequences(task):
    (batch,) = sample(task, "val", 7)
    everything = torch.cat([b.inputs for b in task.eval_batches("val")])
    assert torch.equal(batch.inputs, everything[:7])
    assert len(sample(task, "val", 99)[0].inputs) == 10
    with pytest.raises(RequestError, match="sequences=1: valid: at least 2"):
        sample(task, "val", 1)


@pytest.mark.parametrize("name", ["mha", "gqa", "mla"])
def test_importance_is_the_slope_of_each_sequences_loss_by_finite_differences(name, task):
    model = model_of(name).double()
    batches = sample(task, "val", SEQUENCES)
    found = importance(model, task, batches)
    (batch,) = batches

    def loss_at(layer: int, head: int, gate: float) -> torch.Tensor:
        """Mean loss of each sequence with the head's output scaled by `gate`."""
        other = copy.deepcopy(model)
        d = other.blocks[layer].attention.layout.d_head
        with torch.no_grad():
            other.blocks[layer].attention.out.weight[:, head * d : (head + 1) * d] *= gate
            outputs = other(batch.inputs)
        per_sequence = []
        for r in range(SEQUENCES):
            targets = batch.targets[r]
            scored = targets != -100
            logp = outputs[r][scored].log_softmax(-1)
            per_sequence.append(-logp.gather(1, targets[scored][:, None]).mean())
        return torch.stack(per_sequence)

    step = 1e-4
    for layer in range(2):
        mean, _ = found[layer].mean()
        for head in range(model.shape.layout.n_heads):
            slope = (loss_at(layer, head, 1 + step) - loss_at(layer, head, 1 - step)) / (2 * step)
            # The task scores outputs in fp32.
            assert mean[head] == pytest.approx(float(slope.abs().mean()), rel=2e-3, abs=2e-5)


def test_normalised_layers_have_length_one():
    assert normalised([3.0, 4.0]) == [0.6, 0.8]
    assert normalised([0.0, 0.0]) == [0.0, 0.0]


def test_agreement_is_spearmans_over_all_heads():
    changes = [[Change(loss=x, low=None, high=None) for x in row] for row in ([1, 5], [3, 2])]
    assert agreement([[0.1, 0.9], [0.5, 0.2]], changes).spearman == pytest.approx(1.0)
    # Ranks 1,4,3,2 against 4,1,3,2: Σd² = 18, 1 − 6·18/(4·15)
    found = agreement([[0.9, 0.1], [0.5, 0.2]], changes)
    assert found.spearman == pytest.approx(1 - 6 * 18 / 60)
    assert agreement([[1.0, 1.0], [1.0, 1.0]], changes).spearman is None
