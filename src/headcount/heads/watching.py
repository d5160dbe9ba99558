"""Watching and changing heads while a model runs, by hooks; the model's code and weights stay as they
are, and what only watches changes no output."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from headcount.model import Transformer
from headcount.tasks import Batch

CHUNK = 1 << 24
"""Weights of a layer that are in memory at once, whatever the context: 64 MiB in fp32, and about
four times that with what it takes to make them."""

MapVisitor = Callable[[int, int, Tensor], None]
"""Called with (layer, first query, weights (B, n_heads, t, S)): rows of the maps, a chunk at a time."""

OutputVisitor = Callable[[int, Tensor], Tensor | None]
"""Called with (layer, outputs (B, T, n_heads, d_head)): what every head reads, before W_O. What it
returns takes their place; None leaves them."""


@contextmanager
def watching_maps(model: Transformer, visit: MapVisitor) -> Iterator[None]:
    """Within the block every forward pass shows each layer's attention weights to `visit`, row by row
    of queries in chunks. Never more than CHUNK weights are held, so that long contexts fit."""

    def look(layer: int) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hook(module: Any, args: tuple[Any, ...]) -> None:
            x, sight, rotation = args[:3]
            q, k, _ = module.project(x, rotation)
            batch_size, n_heads, t, _ = q.shape
            rows = max(1, CHUNK // (batch_size * n_heads * k.size(2)))
            for first in range(0, t, rows):
                last = min(first + rows, t)
                seen = sight.rows(first, last)
                visit(layer, first, module.weights(q[:, :, first:last], k, seen))

        return hook

    handles = [
        attention.register_forward_pre_hook(look(layer))
        for layer, attention in enumerate(attentions(model))
        if attention.layout.n_heads
    ]
    with _removed_after(handles):
        yield


@contextmanager
def watching_outputs(model: Transformer, visit: OutputVisitor) -> Iterator[None]:
    """Within the block every forward pass shows each layer's head outputs to `visit`, which may
    replace them. Not for the torch_mha backend, whose output projection lies inside PyTorch."""

    def look(layer: int, module: Any) -> Callable[[nn.Module, tuple[Tensor]], tuple[Tensor] | None]:
        def hook(_: nn.Module, args: tuple[Tensor]) -> tuple[Tensor] | None:
            split = args[0].unflatten(-1, (module.layout.n_heads, module.layout.d_head))
            replaced = visit(layer, split)
            return None if replaced is None else (replaced.flatten(-2),)

        return hook

    handles = [
        attention.out.register_forward_pre_hook(look(layer, attention))
        for layer, attention in enumerate(attentions(model))
        if attention.layout.n_heads
    ]
    with _removed_after(handles):
        yield


@contextmanager
def _removed_after(handles: list[RemovableHandle]) -> Iterator[None]:
    """Take hooks off however the block ends."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def run(model: Transformer, batch: Batch) -> Tensor:
    """The model's outputs for a batch of a task, (B, T, n_outputs)."""
    device = next(model.parameters()).device
    documents = None if batch.documents is None else batch.documents.to(device)
    return model(batch.inputs.to(device), documents=documents)


def attentions(model: Transformer) -> list[Any]:
    """Each layer's attention block."""
    blocks: Iterable[Any] = model.blocks
    return [block.attention for block in blocks]


def heads_by_layer(model: Transformer) -> list[int]:
    """Query heads of each layer."""
    return [attention.layout.n_heads for attention in attentions(model)]


@torch.inference_mode()
def full_maps(model: Transformer, batch: Batch, n: int) -> list[Tensor]:
    """Weights of the batch's first n queries on its first n keys, by layer: (B, n_heads, n, n). Keys
    behind are cut off, so rows of a model that is not causal need not sum to one."""
    parts: list[list[Tensor]] = [[] for _ in model.blocks]

    def keep(layer: int, first: int, weights: Tensor) -> None:
        if first < n:
            parts[layer].append(weights[:, :, : n - first, :n].clone())

    with watching_maps(model, keep):
        run(model, batch)
    rows = batch.inputs.size(0)
    return [torch.cat(p, dim=2) if p else torch.zeros(rows, 0, n, n) for p in parts]
