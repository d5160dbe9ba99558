"""How much the loss depends on each head, by its gradient (Michel et al. 2019, section 4.1)."""

from collections.abc import Sequence

import torch
from scipy.stats import spearmanr
from torch import Tensor

from headcount.heads.record import Agreement, Change
from headcount.heads.scores import Tally
from headcount.heads.watching import heads_by_layer, run, watching_outputs
from headcount.model import Transformer
from headcount.tasks import Batch, Task


def importance(model: Transformer, task: Task, batches: Sequence[Batch]) -> list[Tally]:
    """I_h(x) = |Att_h(x)ᵀ ∂L(x)/∂Att_h(x)| of every sequence x, by layer: the head's output, over all
    places and widths, times the gradient of the sequence's mean loss. It is the first-order change
    of the loss when the head's output is scaled to nothing. The mean over sequences is I_h, before
    Michel's normalisation of each layer (`normalised`).
    """
    n = sum(len(b.inputs) for b in batches)
    tallies = [Tally.empty(n, heads) for heads in heads_by_layer(model)]
    end = 0
    for batch in batches:
        start, end = end, end + len(batch.inputs)
        kept: dict[int, Tensor] = {}

        def keep(layer: int, outputs: Tensor, kept: dict[int, Tensor] = kept) -> Tensor:
            kept[layer] = outputs
            return outputs

        with torch.enable_grad(), watching_outputs(model, keep):
            outputs = run(model, batch)
            losses = task.losses(outputs, batch)
            row = batch.scored.nonzero()[:, 0].to(losses.device)
            counts = torch.bincount(row, minlength=len(batch.inputs)).clamp(min=1)
            # No sequence's loss depends on another's outputs, so one gradient serves all.
            total = (losses / counts[row]).sum()
            gradients = torch.autograd.grad(total, list(kept.values()))
        for (layer, value), gradient in zip(kept.items(), gradients, strict=True):
            found = (value.detach() * gradient).sum(dim=(1, 3)).abs()  # (B, n_heads)
            tallies[layer].add(slice(start, end), found[..., None])
    return tallies


def normalised(layer: list[float]) -> list[float]:
    """A layer's importances over their ℓ2 norm (Michel et al. 2019; Molchanov et al. 2017)."""
    norm = sum(i * i for i in layer) ** 0.5
    return [i / norm if norm else 0.0 for i in layer]


def agreement(important: list[list[float]], changes: list[list[Change]]) -> Agreement:
    """How the ranks of all heads by importance agree with those by what their ablation does."""
    a = [i for layer in important for i in layer]
    b = [c.loss for layer in changes for c in layer]
    if len(a) < 3 or len(set(a)) == 1 or len(set(b)) == 1:
        return Agreement(spearman=None, p_value=None, n_heads=len(a))
    found = spearmanr(a, b)
    return Agreement(spearman=float(found.statistic), p_value=float(found.pvalue), n_heads=len(a))
