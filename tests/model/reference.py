"""Attention blocks written as their definitions read: float64, one head at a time, no kernels.

Nothing here shares code with the package, so that agreement means something. Weights come as a
block's state dict; every tensor is differentiable where its source is.
"""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from headcount.layout import HeadLayout


def reference_attention(
    x: Tensor,
    weights: Mapping[str, Tensor],
    layout: HeadLayout,
    *,
    causal: bool,
    rope: bool,
    kv_head_of: Callable[[int], int] | None = None,
) -> tuple[Tensor, Tensor]:
    """x (B, T, d_model) → output (B, T, d_model), attention weights (B, n_heads, T, T).

    Query head i reads KV head `i // (n_heads / n_kv_heads)` unless `kv_head_of` says otherwise.
    """
    if layout.d_latent:
        return reference_latent_attention(x, weights, layout, causal=causal, rope=rope)
    group = layout.n_heads // layout.n_kv_heads
    kv_head_of = kv_head_of or (lambda i: i // group)
    d, x = layout.d_head, x.double()
    w = {name: weight.double() for name, weight in weights.items()}
    wq, wk, wv = w["qkv.weight"].split([layout.q_width, layout.kv_width, layout.kv_width])
    heads, maps = [], []
    for i in range(layout.n_heads):
        j = kv_head_of(i)
        q, k, v = x @ rows(wq, i, d).T, x @ rows(wk, j, d).T, x @ rows(wv, j, d).T  # (B, T, d)
        if "q_norm.weight" in w:
            q, k = rms_norm(q, w["q_norm.weight"]), rms_norm(k, w["k_norm.weight"])
        if rope:
            q, k = rotate_as_complex(q), rotate_as_complex(k)
        output, attended = one_head(q, k, v, causal)
        heads.append(output)
        maps.append(attended)
    return torch.cat(heads, dim=-1) @ w["out.weight"].T, torch.stack(maps, dim=1)


def reference_latent_attention(
    x: Tensor, weights: Mapping[str, Tensor], layout: HeadLayout, *, causal: bool, rope: bool
) -> tuple[Tensor, Tensor]:
    """DeepSeek-V2 (arXiv 2405.04434), equations 9 to 19, without compression of the queries."""
    x, n, d, r = x.double(), layout.n_heads, layout.d_head, layout.d_rope
    w = {name: weight.double() for name, weight in weights.items()}
    w_q, w_c, w_kr = w["qkv.weight"].split([n * (d + r), layout.d_latent, r])
    w_uk, w_uv = w["expand.weight"].split([n * d, n * d])
    latent = rms_norm(x @ w_c.T, w["latent_norm.weight"])
    k_rope = x @ w_kr.T
    if rope:
        k_rope = rotate_as_complex(k_rope)
    heads, maps = [], []
    for i in range(n):
        q, q_rope = (x @ rows(w_q, i, d + r).T).split([d, r], dim=-1)
        if rope:
            q_rope = rotate_as_complex(q_rope)
        k, v = latent @ rows(w_uk, i, d).T, latent @ rows(w_uv, i, d).T
        q, k = torch.cat((q, q_rope), dim=-1), torch.cat((k, k_rope), dim=-1)
        output, attended = one_head(q, k, v, causal)
        heads.append(output)
        maps.append(attended)
    return torch.cat(heads, dim=-1) @ w["out.weight"].T, torch.stack(maps, dim=1)


def one_head(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """softmax(q kᵀ / sqrt(d)) v: output (B, T, d_v) and weights (B, T, T)."""
    t = q.size(1)
    scores = q @ k.transpose(1, 2) / math.sqrt(q.size(2))
    if causal:
        scores = scores.masked_fill(torch.ones(t, t).triu(1).bool(), -math.inf)
    attended = scores.softmax(-1)
    return attended @ v, attended


def rows(weight: Tensor, head: int, d_head: int) -> Tensor:
    """The (d_head, d_model) block of a projection that belongs to one head."""
    return weight[head * d_head : (head + 1) * d_head]


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    """Zhang & Sennrich 2019, equation 4."""
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


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
