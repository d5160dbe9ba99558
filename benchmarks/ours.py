"""Our model, as the benchmarks run it."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from headcount.model import KVCache, Transformer
from headcount.shape import ModelShape


def trainable(shape: ModelShape) -> nn.Module:
    return Transformer(shape)


def decode_step(
    shape: ModelShape, batch_size: int, context: int, dtype: torch.dtype
) -> Callable[[], Tensor]:
    """One greedy step that attends to `context` tokens."""
    model = Transformer(shape).to(dtype).eval()
    cache = KVCache(shape, batch_size, context, dtype)
    cache.k.normal_()
    cache.v.normal_()
    cache.length = context
    token = torch.zeros(batch_size, 1, dtype=torch.long)

    def step() -> Tensor:
        cache.truncate(context - 1)
        return model(token, cache, last_only=True)[:, -1].argmax(-1)

    return step


def prefill(
    shape: ModelShape, batch_size: int, context: int, dtype: torch.dtype
) -> Callable[[], Tensor]:
    """A prompt into an empty cache."""
    model = Transformer(shape).to(dtype).eval()
    cache = KVCache(shape, batch_size, context, dtype)
    prompt = torch.zeros(batch_size, context, dtype=torch.long)

    def run() -> Tensor:
        cache.truncate(0)
        return model(prompt, cache, last_only=True)

    return run
