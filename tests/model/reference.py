"""An attention block written as the definition reads: float64, one head at a time, no kernels.

Nothing here shares code with the package, so that agreement means something.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor


def reference_attention(
    x: Tensor,
    wq: Tensor,
    wk: Tensor,
    wv: Tensor,
    wo: Tensor,
    *,
    n_heads: int,
    n_kv_heads: int,
    d_head: int,
    causal: bool,
    rope: bool,
    kv_head_of: Callable[[int], int] | None = None,
) -> tuple[Tensor, Tensor]:
    """x (B, T, d_model) and weights (out, in) → output (B, T, d_model), weights (B, n_heads, T, T).

    Query head i reads KV head `i // (n_heads / n_kv_heads)` unless `kv_head_of` says otherwise.
    """
    group = n_heads // n_kv_heads
    kv_head_of = kv_head_of or (lambda i: i // group)
    x, wq, wk, wv, wo = (w.double() for w in (x, wq, wk, wv, wo))
    t = x.size(1)
    hidden = torch.ones(t, t).triu(1).bool() if causal else torch.zeros(t, t).bool()
    heads, maps = [], []
    for i in range(n_heads):
        j = kv_head_of(i)
        q = x @ rows(wq, i, d_head).T  # (B, T, d_head)
        k = x @ rows(wk, j, d_head).T
        v = x @ rows(wv, j, d_head).T
        if rope:
            q, k = rotate_as_complex(q), rotate_as_complex(k)
        scores = q @ k.transpose(1, 2) / math.sqrt(d_head)  # (B, T, T)
        weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
        maps.append(weights)
        heads.append(weights @ v)
    return torch.cat(heads, dim=-1) @ wo.T, torch.stack(maps, dim=1)


def rows(weight: Tensor, head: int, d_head: int) -> Tensor:
    """The (d_head, d_model) block of a projection that belongs to one head."""
    return weight[head * d_head : (head + 1) * d_head]


def rotate_as_complex(x: Tensor, theta: float = 10_000.0) -> Tensor:
    """RoPE by its definition (Su 2021, eq. 14): the pair (x_j, x_{j + d/2}) as a complex number, turned
    by e^{i·position·theta^(−2j/d)}. x: (B, T, d)."""
    t, d = x.shape[-2:]
    frequency = theta ** (-torch.arange(0, d, 2).double() / d)  # (d/2,)
    turn = torch.polar(
        torch.ones(t, d // 2).double(), torch.arange(t).double()[:, None] * frequency
    )
    turned = torch.complex(x[..., : d // 2], x[..., d // 2 :]) * turn
    return torch.cat((turned.real, turned.imag), dim=-1)
