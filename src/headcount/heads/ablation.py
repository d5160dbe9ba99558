"""What a head does for the result: the loss without it, on everything and on every slice.

    zero      the head's output is 0: what remains when it is cut out
    mean      its mean output over all sequences and places: what remains without its news
    resample  its output on another sequence, at the same place: what remains when its news is wrong

Zero takes away a constant as well, to which the rest of the model has grown used; so a head that
does nothing but write a constant looks important under zero and not under mean.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from headcount.heads.record import ABLATIONS, Ablation, Change, Pair, SliceChange
from headcount.heads.watching import heads_by_layer, run, watching_outputs
from headcount.model import Transformer
from headcount.seeding import generator
from headcount.tasks import Batch, Task
from headcount.tasks.base import EVAL_SEED
from headcount.training.evaluation import SlicedMean, interval


class Ablator:
    """Ablates heads of one model on one sample of a task's sequences.

    A layer's head outputs and what it is given are kept from one run of the whole model, so that an
    ablation computes this layer and those behind it alone.
    """

    def __init__(self, model: Transformer, task: Task, batches: Sequence[Batch]) -> None:
        self.model, self.task, self.batches = model, task, batches
        with torch.inference_mode():
            self.whole = [self._scored(run(model, b), b) for b in batches]
        self.names = list(task.slices(batches[0]))

    @property
    def loss(self) -> float:
        """Mean loss of the whole model over the scored tokens."""
        losses = torch.cat([losses for losses, _ in self.whole])
        return float(losses.double().mean())

    def singles(self) -> dict[Ablation, list[list[Change]]]:
        """Every head by itself, [layer][head]."""
        found: dict[Ablation, list[list[Change]]] = {kind: [] for kind in ABLATIONS}
        for layer, n_heads in enumerate(heads_by_layer(self.model)):
            if not n_heads:
                for kind in ABLATIONS:
                    found[kind].append([])
                continue
            stage = self._stage(layer)
            for kind in ABLATIONS:
                found[kind].append([stage.change([h], kind) for h in range(n_heads)])
        return found

    def pairs(self) -> dict[Ablation, list[Pair]]:
        """Every two heads of a layer together: where both stand in for one another, the pair costs
        more than the sum of the two."""
        found: dict[Ablation, list[Pair]] = {kind: [] for kind in ABLATIONS}
        for layer, n_heads in enumerate(heads_by_layer(self.model)):
            if n_heads < 2:
                continue
            stage = self._stage(layer)
            for kind in ABLATIONS:
                for a, b in combinations(range(n_heads), 2):
                    change = stage.change([a, b], kind)
                    found[kind].append(Pair(layer=layer, heads=(a, b), change=change))
        return found

    def without(self, heads: Sequence[tuple[int, int]]) -> Change:
        """The change where all these heads, (layer, head), put out zero."""
        gone: dict[int, list[int]] = {}
        for layer, head in heads:
            gone.setdefault(layer, []).append(head)

        def cut(layer: int, outputs: Tensor) -> Tensor | None:
            if layer not in gone:
                return None
            outputs = outputs.clone()
            outputs[:, :, gone[layer]] = 0.0
            return outputs

        with torch.inference_mode(), watching_outputs(self.model, cut):
            return self._change(run(self.model, b) for b in self.batches)

    def _stage(self, layer: int) -> "Stage":
        return Stage(self, layer)

    def _scored(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Loss and correctness of each scored token, (n_scored,) each."""
        outputs = outputs.cpu()
        losses = self.task.losses(outputs, batch)
        right = self.task.correct(outputs, batch) if self.task.has_accuracy else losses.new_zeros(1)
        return losses, right.double().expand(losses.shape)

    def _change(self, outputs: Iterator[Tensor]) -> Change:
        """What became of the losses; `outputs` are the ablated model's, batch by batch."""
        metric = SlicedMean(len(self.names))
        for batch, (losses, right), out in zip(self.batches, self.whole, outputs, strict=True):
            new_losses, new_right = self._scored(out, batch)
            metric.update(
                new_losses.double() - losses.double(),
                new_right - right,
                batch.scored.nonzero()[:, 0],
                list(self.task.slices(batch).values()),
            )
        loss, error, accuracy, count = (t.tolist() for t in metric.compute())
        sliced = {
            name: SliceChange(loss=loss[i], count=int(count[i]), **_limits(loss[i], error[i]))
            for i, name in enumerate(self.names, start=1)
            if count[i]
        }
        return Change(
            loss=loss[0],
            **_limits(loss[0], error[0]),
            accuracy=accuracy[0] if self.task.has_accuracy else None,
            slices=sliced,
        )


def _limits(mean: float, error: float) -> dict[str, float | None]:
    return {"low": None, "high": None, **interval(mean, error)}


class Stage:
    """One layer, with what it was given and what its heads put out on every batch."""

    @torch.inference_mode()
    def __init__(self, ablator: Ablator, layer: int) -> None:
        self.ablator, self.layer = ablator, layer
        self.given: list[tuple[Any, ...]] = []
        """Of each batch the arguments of the layer's block: its input, sight, rotation, …"""
        outputs: list[Tensor] = []

        def keep_outputs(at: int, found: Tensor) -> None:
            if at == layer:
                outputs.append(found)

        def keep_input(block: Any, args: tuple[Any, ...]) -> None:
            self.given.append(args)

        model = ablator.model
        handle = model.blocks[layer].register_forward_pre_hook(keep_input)
        try:
            with watching_outputs(model, keep_outputs):
                for batch in ablator.batches:
                    run(model, batch)
        finally:
            handle.remove()
        self.outputs = torch.cat(outputs)  # (n_sequences, T, n_heads, d_head)
        self.mean = self.outputs.double().mean((0, 1)).to(self.outputs.dtype)  # (n_heads, d_head)
        n = len(self.outputs)
        # A shift by less than n gives every sequence another one's output.
        g = generator(EVAL_SEED, "heads", "resample", layer)
        self.shift = int(torch.randint(1, n, (), generator=g))

    @torch.inference_mode()
    def change(self, heads: list[int], kind: Ablation) -> Change:
        """What ablating these heads of the layer together does."""
        return self.ablator._change(self._ablated(heads, kind))

    def _ablated(self, heads: list[int], kind: Ablation) -> Iterator[Tensor]:
        model = self.ablator.model
        end = 0
        for batch, given in zip(self.ablator.batches, self.given, strict=True):
            start, end = end, end + len(batch.inputs)
            instead = self._instead(heads, kind, start, end)

            def ablate(layer: int, outputs: Tensor, instead: Tensor = instead) -> Tensor | None:
                if layer != self.layer:
                    return None
                outputs = outputs.clone()
                outputs[:, :, heads] = instead
                return outputs

            with watching_outputs(model, ablate):
                yield _finish(model, self.layer, given)

    def _instead(self, heads: list[int], kind: Ablation, start: int, end: int) -> Tensor:
        """What the heads put out instead, for the sequences from start to end."""
        if kind == "zero":
            return self.outputs.new_zeros(())
        if kind == "mean":
            return self.mean[heads]
        others = torch.arange(start, end).add(self.shift) % len(self.outputs)
        return self.outputs[others][:, :, heads]


def _finish(model: Transformer, layer: int, given: tuple[Any, ...]) -> Tensor:
    """The model's outputs from a block on."""
    x, sight, rotation, cache, _, maps = given
    for i in range(layer, len(model.blocks)):
        x = model.blocks[i](x, sight, rotation, cache, i, maps)
    return model.head(model.norm(x))
