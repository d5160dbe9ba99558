"""Evaluation weighted by scored positions, exact for any batch size and ragged tails."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torchmetrics import Metric

from headcount.model import Transformer
from headcount.study.records import Slice
from headcount.tasks import Task
from headcount.tasks.base import Split


class SlicedMean(Metric):
    """Sums of loss and of correct answers, and counts, over all scored positions and over each slice;
    and what an interval of the mean loss needs.

    Sums are in float64, so the mean does not depend on how positions fell into batches: averages
    of per-batch means are never taken.
    """

    full_state_update = False
    loss: Tensor
    correct: Tensor
    count: Tensor
    squares: Tensor
    n_sequences: Tensor

    def __init__(self, n_slices: int) -> None:
        super().__init__(sync_on_compute=False)  # whoever evaluates does so alone
        for state, shape in (
            ("loss", (1 + n_slices,)),
            ("correct", (1 + n_slices,)),
            ("count", (1 + n_slices,)),
            ("squares", (3, 1 + n_slices)),
            ("n_sequences", (1 + n_slices,)),
        ):
            zeros = torch.zeros(shape, dtype=torch.float64)
            self.add_state(state, default=zeros, dist_reduce_fx="sum")

    def update(self, losses: Tensor, correct: Tensor, row: Tensor, slices: list[Tensor]) -> None:
        """losses, correct, row (the sequence a position is of) and each slice's mask: (n_scored,)."""
        everything = torch.ones_like(losses, dtype=torch.bool)
        masks = torch.stack([everything, *slices]).double()  # (1 + n_slices, n_scored)
        losses = losses.double()
        n_rows = int(row.max()) + 1 if len(row) else 0
        zeros = masks.new_zeros(len(masks), n_rows)
        loss = zeros.index_add(1, row, masks * losses)  # (1 + n_slices, B), sums of each sequence
        count = zeros.index_add(1, row, masks)
        self.loss += loss.sum(dim=1)
        self.correct += masks @ correct.double()
        self.count += count.sum(dim=1)
        self.squares += torch.stack((loss * loss, loss * count, count * count)).sum(dim=2)
        self.n_sequences += (count > 0).sum(dim=1)

    def compute(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Mean loss, its standard error, accuracy and count, each (1 + n_slices,): first over all,
        then by slice.

        The positions of one sequence are not independent, so sequences are what the error is taken
        over: that of a ratio of sums, n/(n − 1)·Σ(s_i − mean·c_i)² / (Σ c_i)², s_i and c_i the
        loss and the count of the i-th of n sequences (Cochran 1977, section 2.11).
        """
        mean = self.loss / self.count
        ss, sc, cc = self.squares
        residual = (ss - 2 * mean * sc + mean**2 * cc).clamp(min=0)
        n = self.n_sequences
        error = (n / (n - 1) * residual).sqrt() / self.count
        return mean, error, self.correct / self.count, self.count


@dataclass(frozen=True)
class Evaluation:
    """loss: mean over scored positions. accuracy: share answered right, bits_per_byte: of text,
    None where the task has none. slices: by name."""

    loss: float
    accuracy: float | None
    bits_per_byte: float | None
    slices: dict[str, Slice]


@torch.inference_mode()
def evaluate(model: Transformer, task: Task, split: Split) -> Evaluation:
    """Score a split with the model in eval mode; its mode and the random state are left as found."""
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    metric: SlicedMean | None = None
    names: list[str] = []
    n_bytes = 0
    for batch in task.eval_batches(split):
        slices = task.slices(batch)
        if metric is None:
            names = list(slices)
            metric = SlicedMean(len(names))
        documents = None if batch.documents is None else batch.documents.to(device)
        outputs = model(batch.inputs.to(device), documents=documents).cpu()
        losses = task.losses(outputs, batch)
        correct = task.correct(outputs, batch) if task.has_accuracy else torch.zeros_like(losses)
        metric.update(losses, correct, batch.scored.nonzero()[:, 0], list(slices.values()))
        n_bytes += task.n_bytes(batch)
    model.train(was_training)
    assert metric is not None, "a split has at least one batch"
    loss, error, accuracy, count = (t.tolist() for t in metric.compute())
    return Evaluation(
        loss=loss[0],
        accuracy=accuracy[0] if task.has_accuracy else None,
        bits_per_byte=loss[0] * count[0] / math.log(2) / n_bytes if n_bytes else None,
        slices={
            name: Slice(
                loss=loss[i],
                count=int(count[i]),
                **interval(loss[i], error[i]),
                accuracy=accuracy[i] if task.has_accuracy else None,
            )
            for i, name in enumerate(names, start=1)
            if count[i] > 0
        },
    )


def interval(mean: float, error: float) -> dict[str, float]:
    """The normal 95% interval; empty where one sequence gives no error."""
    if not math.isfinite(error):
        return {}
    return {"low": mean - 1.96 * error, "high": mean + 1.96 * error}
