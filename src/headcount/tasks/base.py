"""What every task says of itself."""

import functools
import hashlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from headcount.seeding import generator
from headcount.task_config import Generated

IGNORE = -100
"""The target of a position that is not scored."""

EVAL_SEED = 0
"""Evaluation data are drawn from this, whatever the run's seed."""

Split = Literal["val", "test"]
LossUnit = Literal["nats", "NMSE"]


class Batch(NamedTuple):
    """inputs: (B, T) tokens or (B, T, n_inputs) vectors. targets: (B, T) classes, IGNORE where
    nothing is scored, or (B, T, n_outputs) reals, NaN there. documents: (B, T) numbers of the
    documents that do not see one another, where a sequence packs several."""

    inputs: Tensor
    targets: Tensor
    documents: Tensor | None = None

    @property
    def scored(self) -> Tensor:
        """(B, T), True where there is a target."""
        if self.targets.is_floating_point():
            return ~self.targets[..., 0].isnan()
        return self.targets != IGNORE

    @property
    def n_scored(self) -> int:
        return int(self.scored.sum())

    def parts(self, n: int) -> Iterator["Batch"]:
        """The batch in n equal parts."""
        return self.rows(len(self.inputs) // n)

    def rows(self, size: int) -> Iterator["Batch"]:
        """The batch in pieces of `size` sequences; the last may be smaller."""
        for i in range(0, len(self.inputs), size):
            rows = slice(i, i + size)
            documents = None if self.documents is None else self.documents[rows]
            yield Batch(self.inputs[rows], self.targets[rows], documents)


class Task(ABC):
    """Data, loss, metric and slices of one problem.

    Training batches are a function of (seed, step) alone, so that every layout, launcher and
    resumption sees the same; evaluation data does not depend on the seed at all.
    """

    data_hash: str
    """SHA-256 over the data, as recorded beside every result."""

    has_accuracy: bool
    """Whether the share of right answers is a figure people read for this task."""

    loss_unit: LossUnit = "nats"

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
        scored = batch.scored
        return F.cross_entropy(outputs[scored].float(), batch.targets[scored], reduction="none")

    def correct(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Whether each scored position's likeliest output is its target, (n_scored,) booleans; asked
        for only where the task has an accuracy."""
        scored = batch.scored
        return outputs[scored].argmax(-1) == batch.targets[scored]

    def n_bytes(self, batch: Batch) -> int:
        """Bytes of text that the scored positions predict; 0 for what is not text."""
        return 0

    def symbols(self, tokens: Tensor) -> list[str]:
        """Tokens (n,) as people read them."""
        return [str(token) for token in tokens.tolist()]


class GeneratedTask(Task):
    """A task whose sequences are drawn as they are needed, each batch from a stream of its own."""

    def __init__(self, config: Generated) -> None:
        self.size = config.batch_size
        self.eval_size = config.eval_batch_size
        self.eval_sequences = config.eval_sequences
        self._drawn: dict[Split, Batch] = {}

    @abstractmethod
    def draw(self, n: int, g: torch.Generator) -> Batch:
        """n sequences."""

    def train_batch(self, seed: int, step: int) -> Batch:
        return self.draw(self.size, generator(seed, "data", step))

    def eval_batches(self, split: Split) -> Iterator[Batch]:
        yield from self._split(split).rows(self.eval_size)

    def _split(self, split: Split) -> Batch:
        """A whole split: always the same sequences, however they are then taken in batches."""
        if split not in self._drawn:
            g = generator(EVAL_SEED, "evaluation", split)
            self._drawn[split] = self.draw(self.eval_sequences, g)
        return self._drawn[split]

    @functools.cached_property
    def data_hash(self) -> str:  # type: ignore[override]
        test = self._split("test")
        return hashlib.sha256(
            test.inputs.numpy().tobytes() + test.targets.numpy().tobytes()
        ).hexdigest()


class Regression(GeneratedTask):
    """Answers that are vectors: the loss is the squared error as a share of what the best constant
    answer would leave, so that 1 is knowing nothing and 0 is exact."""

    has_accuracy = False
    loss_unit = "NMSE"
    variance: float
    """E‖y − E y‖² of the answer y."""

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        scored = batch.scored
        error = outputs[scored].float() - batch.targets[scored]  # (n_scored, n_outputs)
        return error.square().sum(-1) / self.variance


def answer_at_end(inputs: Tensor, answer: Tensor) -> Batch:
    """Sequences whose one answer, (B,) classes or (B, n_outputs) reals, is read at their end."""
    real = answer.is_floating_point()
    shape = (*inputs.shape[:2], *answer.shape[1:])
    targets = torch.full(shape, float("nan") if real else IGNORE, dtype=answer.dtype)
    targets[:, -1] = answer
    return Batch(inputs, targets)


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
    """Scored positions by place in the sequence: the first bucket has little context to attend to,
    the last has all of it."""
    seq_len = batch.targets.size(1)
    place = torch.arange(seq_len).expand_as(batch.targets)[batch.scored]
    return buckets("position", place, seq_len)


def buckets(name: str, value: Tensor, end: int) -> dict[str, Tensor]:
    """Values from 0 to end − 1 in buckets that grow fourfold, as masks by name."""
    edges = [0] + [edge for edge in (16, 64, 256, 1024, 4096, 16384) if edge < end] + [end]
    return {
        f"{name}_{low}_{high - 1}": (value >= low) & (value < high)
        for low, high in itertools.pairwise(edges)
    }
