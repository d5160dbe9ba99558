"""What every task says of itself."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORE = -100
"""The target of a position that is not scored."""

Split = Literal["val", "test"]


class Batch(NamedTuple):
    """inputs: (B, T) tokens. targets: (B, T), IGNORE where nothing is scored."""

    inputs: Tensor
    targets: Tensor

    @property
    def n_scored(self) -> int:
        return int((self.targets != IGNORE).sum())


class Task(ABC):
    """Data, loss, metric and slices of one problem.

    Training batches are a function of (seed, step) alone, so that every layout, launcher and
    resumption sees the same; evaluation data does not depend on the seed at all.
    """

    data_hash: str
    """SHA-256 over the data, as recorded beside every result."""

    has_accuracy: bool
    """Whether the share of right answers is a figure people read for this task."""

    @abstractmethod
    def train_batch(self, seed: int, step: int) -> Batch:
        """The batch of one optimiser step."""

    @abstractmethod
    def eval_batches(self, split: Split) -> Iterator[Batch]:
        """The split's batches, in a fixed order, each scored position exactly once."""

    @abstractmethod
    def slices(self, batch: Batch) -> dict[str, Tensor]:
        """Named parts of the scored positions: masks, each (n_scored,)."""

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Loss of each scored position, (n_scored,): cross-entropy in nats, in fp32."""
        scored = batch.targets != IGNORE
        return F.cross_entropy(outputs[scored].float(), batch.targets[scored], reduction="none")

    def correct(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Whether each scored position's likeliest output is its target, (n_scored,) booleans."""
        scored = batch.targets != IGNORE
        return outputs[scored].argmax(-1) == batch.targets[scored]


def windows(tokens: Tensor, seq_len: int, batch_size: int) -> Iterator[Batch]:
    """Cut (n,) tokens into adjacent windows: every token but the first is a target exactly once.

    The last window may be ragged; its rest is filled with token 0 and not scored.
    """
    inputs, targets = tokens[:-1].long(), tokens[1:].long()
    rest = -len(inputs) % seq_len
    inputs = F.pad(inputs, (0, rest)).view(-1, seq_len)  # (n_windows, T)
    targets = F.pad(targets, (0, rest), value=IGNORE).view(-1, seq_len)
    for i in range(0, len(inputs), batch_size):
        yield Batch(inputs[i : i + batch_size], targets[i : i + batch_size])


def position_slices(batch: Batch) -> dict[str, Tensor]:
    """Scored positions by place in the sequence, in buckets that grow fourfold: the first has
    little context to attend to, the last has all of it."""
    seq_len = batch.targets.size(1)
    place = torch.arange(seq_len).expand_as(batch.targets)[batch.targets != IGNORE]
    edges = [0] + [edge for edge in (16, 64, 256, 1024) if edge < seq_len] + [seq_len]
    return {
        f"position_{low}_{high - 1}": (place >= low) & (place < high)
        for low, high in itertools.pairwise(edges)
    }
