"""Greedy and sampled generation through the KV cache."""

import torch
from torch import Tensor

from headcount.model.cache import KVCache
from headcount.model.transformer import Transformer


@torch.inference_mode()
def generate(
    model: Transformer,
    prompt: Tensor,
    n_tokens: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Continue `prompt` (B, T) by n_tokens: (B, T + n_tokens).

    temperature 0 is greedy; above it, tokens are drawn from the softmax of logits / temperature,
    among the `top_k` likeliest if given. Raises ValueError for an empty prompt.
    """
    if prompt.size(1) == 0:
        raise ValueError("generation needs a prompt of at least one token")
    batch_size, t = prompt.shape
    weight = next(model.parameters())
    cache = KVCache(model.shape, batch_size, t + n_tokens, weight.dtype, weight.device)
    tokens, step = prompt, prompt
    for _ in range(n_tokens):
        logits = model(step, cache, last_only=True)[:, -1]  # (B, n_outputs)
        step = _choose(logits, temperature, top_k, generator)  # (B, 1)
        tokens = torch.cat((tokens, step), dim=1)
    return tokens


def _choose(
    logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None
) -> Tensor:
    """One token a row, (B, 1)."""
    if temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    if top_k is not None:
        least = logits.topk(min(top_k, logits.size(-1))).values[:, -1:]
        logits = logits.masked_fill(logits < least, float("-inf"))
    return torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
