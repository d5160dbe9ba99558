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
    lengths: Tensor | None = None,
) -> Tensor:
    """Continue `prompt` (B, T) by n_tokens: (B, T + n_tokens).

    temperature 0 is greedy; above it, tokens are drawn from the softmax of logits / temperature,
    among the `top_k` likeliest if given. `lengths` (B,) says how many tokens of each row's prompt are
    real, the rest being padding; the new tokens stand behind the padding, in the last n_tokens
    columns. Raises ValueError for an empty prompt.
    """
    if prompt.size(1) == 0 or (lengths is not None and not bool(lengths.all())):
        raise ValueError("generation needs prompts of at least one token")
    batch_size, t = prompt.shape
    weight = next(model.parameters())
    cache = KVCache(model.shape, batch_size, t + n_tokens, weight.dtype, weight.device)
    pieces, step = [prompt], prompt
    for _ in range(n_tokens):
        logits = model(step, cache, last_only=True, lengths=lengths)[:, -1]  # (B, n_outputs)
        step = _choose(logits, temperature, top_k, generator)  # (B, 1)
        pieces.append(step)
        lengths = None  # every row goes on by one real token
    return torch.cat(pieces, dim=1)


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
