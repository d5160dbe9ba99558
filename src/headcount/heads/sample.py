"""The sequences that heads are looked at on."""

from collections.abc import Iterable

import torch

from headcount.errors import RequestError
from headcount.tasks import Batch, Task
from headcount.tasks.base import Split

TOKENS = 8192
"""Tokens that go through a model at once."""


def sample(task: Task, split: Split, n_sequences: int) -> list[Batch]:
    """The first n sequences of a split, or all if it has fewer, in batches of one size. RequestError
    for fewer than two: one sequence has no spread and nothing to be resampled from."""
    if n_sequences < 2:
        raise RequestError(f"sequences={n_sequences}: valid: at least 2, for a spread")
    found: list[Batch] = []
    for batch in task.eval_batches(split):
        found.extend(batch.rows(n_sequences - sum(len(b.inputs) for b in found)))
        if sum(len(b.inputs) for b in found) >= n_sequences:
            break
    whole = joined(found).rows(n_sequences)
    first = next(whole)
    if len(first.inputs) < 2:
        raise RequestError(f"the {split} split has one sequence; valid: a task with at least two")
    return list(first.rows(max(1, TOKENS // first.inputs.size(1))))


def joined(batches: Iterable[Batch]) -> Batch:
    """One batch of several."""
    inputs, targets, documents = zip(*batches, strict=True)
    packed = None if documents[0] is None else torch.cat(documents)
    return Batch(torch.cat(inputs), torch.cat(targets), packed)
