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
    for tensor in cache.tensors:
        tensor.normal_()
    cache.length = context
    token = torch.zeros(batch_size, 1, dtype=torch.long)

    def step() -> Tensor:
        cache.truncate(context - 1)
        return model(token, cache, last_only=True)[:, -1].argmax(-1)

    return step


def generate(
    shape: ModelShape, batch_size: int, context: int, dtype: torch.dtype, n_tokens: int
) -> Callable[[], Tensor]:
    """Greedy generation of n_tokens after a context that the cache holds: our loop, step by step."""
    model = Transformer(shape).to(dtype).eval()
    cache = KVCache(shape, batch_size, context + n_tokens, dtype)
    for tensor in cache.tensors:
        tensor.normal_()
    cache.length = context + n_tokens
    prompt = torch.zeros(batch_size, context, dtype=torch.long)

    def run() -> Tensor:
        cache.truncate(context - 1)
        tokens, token = prompt, prompt[:, -1:]
        for _ in range(n_tokens):
            token = model(token, cache, last_only=True)[:, -1].argmax(-1, keepdim=True)
            tokens = torch.cat((tokens, token), dim=1)
        return tokens

    return run


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
