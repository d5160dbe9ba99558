"""Evaluation weighted by scored positions, exact for any batch size and ragged tails."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torchmetrics import Metric

from headcount.model import Transformer
from headcount.study.records import Slice
from headcount.tasks import Task
from headcount.tasks.base import Split


class SlicedMean(Metric):
    """Sums of loss and of correct answers, and counts, over all scored positions and over each slice.

    Sums are in float64, so the mean does not depend on how positions fell into batches: averages
    of per-batch means are never taken.
    """

    full_state_update = False
    loss: Tensor
    correct: Tensor
    count: Tensor

    def __init__(self, n_slices: int) -> None:
        super().__init__(sync_on_compute=False)  # whoever evaluates does so alone
        for state in ("loss", "correct", "count"):
            zeros = torch.zeros(1 + n_slices, dtype=torch.float64)
            self.add_state(state, default=zeros, dist_reduce_fx="sum")

    def update(self, losses: Tensor, correct: Tensor, slices: list[Tensor]) -> None:
        """losses, correct and each slice's mask: (n_scored,)."""
        everything = torch.ones_like(losses, dtype=torch.bool)
        masks = torch.stack([everything, *slices]).double()  # (1 + n_slices, n_scored)
        self.loss += masks @ losses.double()
        self.correct += masks @ correct.double()
        self.count += masks.sum(dim=1)

    def compute(self) -> tuple[Tensor, Tensor, Tensor]:
        """Mean loss, accuracy and count, each (1 + n_slices,): first over all, then by slice."""
        return self.loss / self.count, self.correct / self.count, self.count


@dataclass(frozen=True)
class Evaluation:
    """loss: mean over scored positions. accuracy: share answered right. slices: by name."""

    loss: float
    accuracy: float
    slices: dict[str, Slice]


@torch.inference_mode()
def evaluate(model: Transformer, task: Task, split: Split) -> Evaluation:
    """Score a split with the model in eval mode; its mode and the random state are left as found."""
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    metric: SlicedMean | None = None
    names: list[str] = []
    for batch in task.eval_batches(split):
        slices = task.slices(batch)
        if metric is None:
            names = list(slices)
            metric = SlicedMean(len(names))
        outputs = model(batch.inputs.to(device)).cpu()
        losses, correct = task.losses(outputs, batch), task.correct(outputs, batch)
        metric.update(losses, correct, list(slices.values()))
    model.train(was_training)
    assert metric is not None, "a split has at least one batch"
    loss, accuracy, count = metric.compute()
    return Evaluation(
        loss=loss[0].item(),
        accuracy=accuracy[0].item(),
        slices={
            name: Slice(loss=loss[i].item(), count=int(count[i]))
            for i, name in enumerate(names, start=1)
            if count[i] > 0
        },
    )
