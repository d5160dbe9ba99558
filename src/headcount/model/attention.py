"""Scaled dot-product attention over a HeadLayout: single, MHA, GQA and MQA are one block."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend

from headcount.layout import HeadLayout
from headcount.model.cache import KVCache


class Attention(nn.Module):
    """One attention block, causal or not.

    Query head i reads KV head `i // group_size`. Queries, keys and values come from one fused
    projection; its rows are all query heads, then all key heads, then all value heads.
    """

    def __init__(self, layout: HeadLayout, dropout: float, causal: bool) -> None:
        super().__init__()
        self.layout = layout
        self.dropout = dropout
        self.causal = causal
        self.qkv = nn.Linear(layout.d_model, layout.q_width + 2 * layout.kv_width, bias=False)
        self.out = nn.Linear(layout.q_width, layout.d_model, bias=False)

    def forward(
        self,
        x: Tensor,
        rotation: tuple[Tensor, Tensor] | None = None,
        cache: KVCache | None = None,
        layer: int = 0,
    ) -> Tensor:
        """x: (B, T, d_model) → (B, T, d_model). `rotation`: cos and sin, each (T, d_head)."""
        a = self.layout
        q, k, v = self.qkv(x).split([a.q_width, a.kv_width, a.kv_width], dim=-1)
        q = q.unflatten(-1, (a.n_heads, a.d_head)).transpose(1, 2)  # (B, n_heads, T, d_head)
        k = k.unflatten(-1, (a.n_kv_heads, a.d_head)).transpose(1, 2)  # (B, n_kv_heads, T, d_head)
        v = v.unflatten(-1, (a.n_kv_heads, a.d_head)).transpose(1, 2)  # (B, n_kv_heads, T, d_head)
        if rotation is not None:
            q, k = rotate(q, *rotation), rotate(k, *rotation)
        if cache is not None:
            k, v = cache.append(layer, k, v)  # each (B, n_kv_heads, S, d_head), S = past + T
        dropout = self.dropout if self.training else 0.0  # SDPA itself ignores eval mode
        y = attend(q, k, v, self.causal, dropout)  # (B, n_heads, T, d_head)
        return self.out(y.transpose(1, 2).flatten(2))


class SDPACall(NamedTuple):
    """The arguments of one call of F.scaled_dot_product_attention."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    is_causal: bool
    kv_sharing: str


def sdpa_call(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> SDPACall:
    """Arrange q (B, n_heads, T, d_head) and k, v (B, n_kv_heads, S, d_head) for the kernel.

    The last query stands at the last key: PyTorch's own `is_causal` aligns top-left and is wrong
    for T < S. Where T < S, query heads become query rows of their KV head, so that grouped keys and
    values are read once and never copied; a whole sequence takes the causal kernel, which needs
    one KV head a query head.
    """
    n_heads, n_kv_heads = q.size(1), k.size(1)
    t, s = q.size(2), k.size(2)
    if n_heads == n_kv_heads:
        mask = lower_right(t, s, q.device) if causal and 1 < t < s else None
        return SDPACall(q, k, v, mask, causal and t == s and t > 1, "none to share")
    group = n_heads // n_kv_heads
    if t == s and t > 1:
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        return SDPACall(q, k, v, None, causal, "repeated")
    q = q.unflatten(1, (n_kv_heads, group)).flatten(2, 3)  # (B, n_kv_heads, group·T, d_head)
    mask = lower_right(t, s, q.device).repeat(group, 1) if causal and t > 1 else None
    return SDPACall(q, k, v, mask, False, "grouped rows")


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool, dropout: float = 0.0) -> Tensor:
    """softmax(q kᵀ / sqrt(d_head)) v with shared KV heads: (B, n_heads, T, d_head)."""
    call = sdpa_call(q, k, v, causal)
    y = F.scaled_dot_product_attention(
        call.q, call.k, call.v, attn_mask=call.mask, dropout_p=dropout, is_causal=call.is_causal
    )
    return y.reshape(q.shape)  # grouped rows go back to (B, n_heads, T, d_head)


def kernel_that_runs(call: SDPACall) -> str:
    """The name of the SDPA kernel that PyTorch takes for this call: flash, math, …"""
    choice = torch._fused_sdp_choice(
        call.q, call.k, call.v, attn_mask=call.mask, dropout_p=0.0, is_causal=call.is_causal
    )
    return "sdpa " + SDPBackend(choice).name.lower().removesuffix("_attention")


def lower_right(t: int, s: int, device: torch.device) -> Tensor:
    """(T, S) mask, True where query i, at position S − T + i, may look at key j."""
    return torch.ones(t, s, dtype=torch.bool, device=device).tril(diagonal=s - t)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding (Su 2021) in the half-split pairing: x (B, heads, T, d_head)."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


def rotation_table(n_positions: int, d_head: int, theta: float = 10_000.0) -> Tensor:
    """cos and sin of every position's angles, stacked: (2, n_positions, d_head)."""
    frequency = theta ** (-torch.arange(0, d_head, 2, dtype=torch.float32) / d_head)
    angle = torch.outer(torch.arange(n_positions, dtype=torch.float32), frequency)
    angle = torch.cat((angle, angle), dim=-1)  # (n_positions, d_head)
    return torch.stack((angle.cos(), angle.sin()))
