"""The kernels that compute softmax(q kᵀ · scale) v over shared KV heads: eager, sdpa and flex.

Shapes: q (B, n_heads, T, d), k and v (B, n_kv_heads, S, d), the result (B, n_heads, T, d_v). Query
head i reads KV head `i // (n_heads / n_kv_heads)`. Where query heads become query rows of their KV
head, (B, n_kv_heads, group·T, d), grouped keys and values are read once and never copied.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend

from headcount.errors import RequestError, did_you_mean
from headcount.model.sight import Sight


class Kernel(NamedTuple):
    """What really runs: a cost figure names it."""

    name: str
    kv_sharing: str
    """How query heads share KV heads: `none to share`, `grouped rows` (no copy), `repeated` (copied
    for each query head), `in the kernel`."""


_watching: list[list[Kernel]] = []


@contextmanager
def watch_kernels() -> Iterator[list[Kernel]]:
    """Within it, every attention that any model computes adds the kernel that it really runs."""
    seen: list[Kernel] = []
    _watching.append(seen)
    try:
        yield seen
    finally:
        _watching.remove(seen)


def note(name: str, kv_sharing: str) -> None:
    for seen in _watching:
        seen.append(Kernel(name, kv_sharing))


class Backend(Protocol):
    """One way to compute attention."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, sight: Sight, scale: float, dropout: float
    ) -> Tensor: ...


class Eager:
    """The definition, every weight materialised; in fp32 whatever the inputs are."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, sight: Sight, scale: float, dropout: float
    ) -> Tensor:
        if _watching:
            note("eager", "none to share" if q.size(1) == k.size(1) else "grouped rows")
        weights = attention_weights(q, k, sight, scale)
        if dropout:
            weights = F.dropout(weights, dropout)
        y = as_rows(weights, v.size(1)) @ v  # (B, n_kv_heads, group·T, d_v)
        return y.reshape(*q.shape[:3], v.size(-1))


def attention_weights(q: Tensor, k: Tensor, sight: Sight, scale: float) -> Tensor:
    """softmax(q kᵀ · scale), (B, n_heads, T, S): rows sum to one, or to zero where nothing is seen."""
    scores = (as_rows(q, k.size(1)) @ k.transpose(-1, -2)).view(*q.shape[:3], k.size(2)) * scale
    if sight.is_open:
        return scores.softmax(-1, dtype=torch.float32).to(q.dtype)
    # The lowest finite number, not −inf: a row of −inf has NaN gradients.
    hidden = ~sight.allowed
    scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
    return scores.softmax(-1, dtype=torch.float32).masked_fill(hidden, 0.0).to(q.dtype)


def as_rows(q: Tensor, n_kv_heads: int) -> Tensor:
    """(B, n_heads, T, d) → (B, n_kv_heads, group·T, d)."""
    if q.size(1) == n_kv_heads:
        return q
    return q.reshape(q.size(0), n_kv_heads, -1, q.size(3))


class SDPA:
    """F.scaled_dot_product_attention, arranged so that a fast kernel can take it."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, sight: Sight, scale: float, dropout: float
    ) -> Tensor:
        if q.device.type == "cpu" and q.dtype == torch.bfloat16 and q.requires_grad:
            # The bf16 backward of the CPU kernel takes 2 to 6 times as long as the fp32 one.
            with torch.autocast("cpu", enabled=False):
                y = self.attend(q.float(), k.float(), v.float(), sight, scale, dropout)
            return y.to(torch.bfloat16)
        call = sdpa_call(q, k, v, sight)
        if _watching:
            note(fused_kernel(call, dropout), call.kv_sharing)
        y = F.scaled_dot_product_attention(
            call.q,
            call.k,
            call.v,
            attn_mask=call.mask,
            dropout_p=dropout,
            is_causal=call.is_causal,
            scale=scale,
        )
        if y.size(-1) != v.size(-1):
            y = y[..., : v.size(-1)]
        # Rows go back to heads; a plain call's result keeps its strides.
        return y if y.size(1) == q.size(1) else y.reshape(*q.shape[:3], -1)


class SDPACall(NamedTuple):
    """The arguments of one call of F.scaled_dot_product_attention."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    is_causal: bool
    kv_sharing: str


def sdpa_call(q: Tensor, k: Tensor, v: Tensor, sight: Sight) -> SDPACall:
    """Arrange a call: rows where KV heads are shared, except over a whole causal sequence, where the
    causal kernel is worth more than the copies and wants one KV head a query head."""
    if v.size(-1) < k.size(-1):
        # The fused kernels want one width; unpadded, MLA would fall to the one that materialises.
        v = F.pad(v, (0, k.size(-1) - v.size(-1)))
    group = q.size(1) // k.size(1)
    if group == 1:
        mask = None if sight.is_open or sight.is_square else sight.allowed
        return SDPACall(q, k, v, mask, sight.is_square, "none to share")
    if sight.is_square:
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        return SDPACall(q, k, v, None, True, "repeated")
    mask = None if sight.is_open else sight.grouped(group)
    return SDPACall(as_rows(q, k.size(1)), k, v, mask, False, "grouped rows")


def fused_kernel(call: SDPACall, dropout: float) -> str:
    """The name of the kernel that PyTorch takes for this call: `sdpa flash`, `sdpa math`, …"""
    choice = torch._fused_sdp_choice(
        call.q, call.k, call.v, attn_mask=call.mask, dropout_p=dropout, is_causal=call.is_causal
    )
    return "sdpa " + SDPBackend(choice).name.lower().removesuffix("_attention")


class Flex:
    """torch's flex_attention, compiled. What it cannot do goes to SDPA with a warning that says why:
    dropout anywhere, and the backward pass on a CPU."""

    def __init__(self) -> None:
        self.instead = SDPA()

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, sight: Sight, scale: float, dropout: float
    ) -> Tensor:
        why_not = _flex_lacks(q, dropout)
        if why_not:
            warnings.warn(f"model.backend=flex {why_not}: sdpa runs instead", stacklevel=2)
            return self.instead.attend(q, k, v, sight, scale, dropout)
        shared = q.size(1) != k.size(1)
        if _watching:
            note("flex", "in the kernel" if shared else "none to share")
        mask = None if sight.is_open else block_mask(sight)
        return compiled_flex()(q, k, v, block_mask=mask, scale=scale, enable_gqa=shared)


def _flex_lacks(q: Tensor, dropout: float) -> str | None:
    if dropout:
        return "has no dropout (model.attention_dropout)"
    if q.device.type == "cpu" and q.requires_grad:
        return "has no backward pass on a CPU"
    return None


@cache
def compiled_flex() -> Any:
    """One compiled function for all lengths; the first call takes some 20 s."""
    from torch.nn.attention.flex_attention import flex_attention  # imports the whole compiler

    return torch.compile(flex_attention, dynamic=True)


def block_mask(sight: Sight) -> Any:
    """The sight as flex_attention's BlockMask, kept on the sight for the other layers."""
    from torch.nn.attention.flex_attention import create_block_mask

    if sight.block_mask is None:
        starts, lengths = sight.first_places, sight.lengths
        rows = starts.size(0) if lengths is None else lengths.size(0)

        # Arithmetic on places, not a look-up in the dense mask: the CPU compiler fails on that one.
        def may_see(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            seen = j <= starts[b if starts.size(0) > 1 else 0] + i if sight.causal else j >= 0
            return seen if lengths is None else seen & (j < lengths[b])

        sight.block_mask = create_block_mask(
            may_see, rows, None, sight.t, sight.s, device=str(sight.device)
        )
    return sight.block_mask


BACKENDS: dict[str, Backend] = {"eager": Eager(), "sdpa": SDPA(), "flex": Flex()}


def backend(name: str) -> Backend:
    """The backend of this name. Raises RequestError, naming the known ones."""
    if name not in BACKENDS:
        known = ", ".join(BACKENDS)
        raise RequestError(f"model.backend={name}{did_you_mean(name, BACKENDS)}: valid: {known}")
    return BACKENDS[name]
