"""Scores on attention made by hand, where the right answer is known in closed form."""

import math
from functools import partial

import pytest
import torch

from headcount.heads import scores, watching
from headcount.heads.inspection import on_own_tokens, on_repeated_tokens
from headcount.heads.redundancy import Alikeness, effective_heads, jensen_shannon
from headcount.heads.scores import Tally
from headcount.heads.watching import full_maps, run, watching_maps
from headcount.layout import HeadLayout
from headcount.model import Transformer
from headcount.tasks import Batch
from tests.model.shapes import LAYOUTS, small_shape

T = 12


def uniform(t: int = T) -> torch.Tensor:
    """A causal head that looks at everything alike: (t, t)."""
    return torch.tril(torch.ones(t, t)) / torch.arange(1, t + 1)[:, None]


def previous(t: int = T) -> torch.Tensor:
    maps = torch.diag(torch.ones(t - 1), -1)
    maps[0, 0] = 1.0
    return maps


def induction(half: int = T // 2) -> torch.Tensor:
    """On a round of `half` distinct tokens, repeated: each looks behind its earlier occurrence."""
    maps = torch.eye(2 * half)
    for i in range(half, 2 * half):
        maps[i] = 0.0
        maps[i, i - half + 1] = 1.0
    return maps


def test_a_previous_token_head_scores_one_and_a_uniform_head_what_chance_gives():
    maps = torch.stack([previous(), uniform()])[None]
    mass, applies = scores.previous_token(maps, 0)
    assert applies.tolist() == [[[False] + [True] * (T - 1)]]
    tally = Tally.empty(1, 2)
    tally.add(slice(0, 1), mass, applies)
    mean, _ = tally.mean()
    assert mean[0] == 1.0
    assert mean[1] == pytest.approx(sum(1 / (i + 1) for i in range(1, T)) / (T - 1))


def test_an_induction_head_scores_one_and_a_uniform_head_what_chance_gives():
    half = T // 2
    tokens = torch.arange(half).repeat(2)[None]
    maps = torch.stack([induction(), uniform(), previous()])[None]
    mass, applies = scores.induction(maps, tokens, 0)
    # The last query's earlier token is followed by the first of the second round.
    assert applies[0, 0].tolist() == [False] * half + [True] * half
    tally = Tally.empty(1, 3)
    tally.add(slice(0, 1), mass, applies)
    mean, _ = tally.mean()
    assert mean[0] == 1.0
    assert mean[1] == pytest.approx(sum(1 / (i + 1) for i in range(half, T)) / half)
    assert mean[2] == 0.0


def test_duplicates_are_earlier_occurrences_alone():
    tokens = torch.tensor([[7, 7, 3, 7]])
    mass, applies = scores.duplicate_token(uniform(4)[None, None], tokens, 0)
    assert applies.tolist() == [[[False, True, False, True]]]
    torch.testing.assert_close(mass[0, 0], torch.tensor([0, 1 / 2, 0, 2 / 4]))


def test_entropy_and_distance_of_a_uniform_head_in_closed_form():
    maps = torch.stack([uniform(), previous()])[None]
    i = torch.arange(T)
    torch.testing.assert_close(scores.entropy(maps)[0, 0], (i + 1.0).log())
    torch.testing.assert_close(scores.distance(maps, 0)[0, 0], i / 2)
    assert scores.entropy(maps)[0, 1].abs().max() == 0
    torch.testing.assert_close(scores.distance(maps, 0)[0, 1], (i > 0).float())


def test_a_chunk_scores_as_its_rows_of_the_whole():
    torch.manual_seed(0)
    maps = torch.rand(2, 3, T, T).tril().softmax(-1)
    tokens = torch.randint(4, (2, T))
    for whole, part in (
        (scores.distance(maps, 0), scores.distance(maps[:, :, 5:], 5)),
        (scores.induction(maps, tokens, 0)[0], scores.induction(maps[:, :, 5:], tokens, 5)[0]),
        (scores.previous_token(maps, 0)[0], scores.previous_token(maps[:, :, 5:], 5)[0]),
    ):
        torch.testing.assert_close(whole[:, :, 5:], part)


def test_the_probe_repeats_a_round_of_distinct_tokens():
    tokens = scores.repeated_tokens(40, 24, 3)
    assert torch.equal(tokens[:, :12], tokens[:, 12:])
    assert all(len(set(row.tolist())) == 12 for row in tokens[:, :12])
    assert scores.repeated_tokens(4, 24, 3).max() < 4  # a round larger than the vocabulary


def test_a_tally_counts_sequences_and_not_positions():
    """Two sequences that disagree: 0 and 1 over any number of queries. sd of the two is 1/√2, the
    error of their mean 1/2, whatever the number of queries."""
    for t in (3, 300):
        tally = Tally.empty(2, 1)
        tally.add(slice(0, 2), torch.tensor([0.0, 1.0])[:, None, None].expand(2, 1, t))
        (mean,), (half,) = tally.mean()
        assert (mean, half) == (0.5, pytest.approx(1.96 * 0.5))


def position_model(t: int) -> Transformer:
    """A real model with two heads: one attends to the position before, one to all alike. Positions
    are one-hot; the first head's query of place i is the key of place i − 1, both large."""
    shape = small_shape(
        HeadLayout(2 * t, 2, 2, t), n_layers=1, mlp="none", position="learned", max_len=t
    )
    model = Transformer(shape).eval()
    with torch.no_grad():
        model.embed.weight.zero_()
        model.position.weight.copy_(torch.eye(t, 2 * t))
        qkv = torch.zeros(6, t, 2 * t)  # q0, q1, k0, k1, v0, v1
        qkv[0, :, :t] = torch.diag(torch.ones(t - 1), 1) * 100  # place i asks for i − 1
        qkv[2, :, :t] = torch.eye(t) * 100
        model.blocks[0].attention.qkv.weight.copy_(qkv.flatten(0, 1))
    return model


def test_a_real_model_with_a_previous_token_head_and_a_uniform_head():
    model = position_model(T)
    batch = Batch(torch.randint(40, (3, T)), torch.zeros(3, T))
    found, _ = on_own_tokens(model, [batch])
    mean = found["previous_token"].mean[0]
    assert mean[0] == pytest.approx(1.0, abs=1e-6)
    assert mean[1] == pytest.approx(sum(1 / (i + 1) for i in range(1, T)) / (T - 1))
    assert found["entropy"].mean[0][1] == pytest.approx(sum(math.log(i + 1) for i in range(T)) / T)
    assert found["distance"].mean[0][1] == pytest.approx((T - 1) / 4)
    assert found["previous_token"].half_width[0][0] == pytest.approx(0.0, abs=1e-6)
    probe = on_repeated_tokens(model, T)
    expected = sum(1 / (i + 1) for i in range(T // 2, T)) / (T // 2)
    assert probe["induction"].mean[0] == pytest.approx([0.0, expected], abs=1e-6)
    assert probe["duplicate_token"].mean[0] == pytest.approx([0.0, expected], abs=1e-6)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", LAYOUTS)
def test_maps_in_chunks_are_the_models_own_maps(name, causal, monkeypatch):
    """Against `model(maps=[])`, which holds them whole; chunks of a few rows, packed documents."""
    monkeypatch.setattr(watching, "CHUNK", 2 * 8 * T * 5)
    torch.manual_seed(0)
    model = Transformer(small_shape(LAYOUTS[name], causal=causal)).eval()
    documents = torch.tensor([[0] * 5 + [1] * (T - 5), [0] * T])
    for packed in (None, documents):
        batch = Batch(torch.randint(40, (2, T)), torch.zeros(2, T), packed)
        whole: list[torch.Tensor] = []
        chunks: dict[int, list[torch.Tensor]] = {}
        with torch.no_grad():
            model(batch.inputs, maps=whole, documents=packed)
            keep = partial(_keep, chunks)
            with watching_maps(model, keep):
                run(model, batch)
        for layer, maps in enumerate(whole):
            torch.testing.assert_close(torch.cat(chunks[layer], dim=2), maps)
        torch.testing.assert_close(full_maps(model, batch, 7)[1], whole[1][:, :, :7, :7])


def _keep(chunks, layer, _, weights):
    chunks.setdefault(layer, []).append(weights)


def test_jensen_shannon_is_zero_for_the_same_and_one_bit_for_the_disjoint():
    maps = torch.stack([previous(), previous(), torch.eye(T), uniform()])[None]
    found = jensen_shannon(maps)[0]
    assert found[0, 1].abs().max() == 0
    torch.testing.assert_close(found[0, 2, 1:], torch.ones(T - 1))  # place 0 is shared
    assert torch.equal(found, found.transpose(0, 1))
    # One key against it and another alike, in closed form: H(3/4, 1/4) − 1/2 bit.
    expected = -(0.75 * math.log2(0.75) + 0.25 * math.log2(0.25)) - 0.5
    assert float(found[0, 3, 1]) == pytest.approx(expected)


def test_cka_against_its_definition_by_gram_matrices():
    torch.manual_seed(0)
    outputs = torch.randn(3, 20, 3, 4)
    outputs[:, :, 1] = outputs[:, :, 0] @ torch.linalg.qr(torch.randn(4, 4))[0] * 3 + 1
    alike = Alikeness(3, 4)
    for part in outputs.split(1):
        alike.add(part)
    n = 60
    centre = torch.eye(n) - 1 / n
    grams = [centre @ (x @ x.T) @ centre for x in outputs.flatten(0, 1).unbind(1)]
    expected = torch.tensor(
        [[float((a * b).sum() / (a.norm() * b.norm())) for b in grams] for a in grams]
    )
    torch.testing.assert_close(alike.cka().float(), expected, atol=1e-5, rtol=0)
    assert float(alike.cka()[0, 1]) == pytest.approx(1.0)  # rotation, scale and shift are nothing


def test_effective_heads_of_copies_of_strangers_and_of_two_pairs():
    assert effective_heads(torch.ones(4, 4)) == pytest.approx(1.0)
    assert effective_heads(torch.eye(4)) == pytest.approx(4.0)
    assert effective_heads(torch.block_diag(torch.ones(2, 2), torch.ones(2, 2))) == pytest.approx(2)
    dead = Alikeness(2, 3)
    dead.add(torch.cat((torch.randn(1, 9, 1, 3), torch.zeros(1, 9, 1, 3)), dim=2))
    assert dead.cka().tolist() == [[1.0, 0.0], [0.0, 1.0]]
