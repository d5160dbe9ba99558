"""The attention block over a HeadLayout: single, MHA, GQA and MQA are one module.

`attention_block` gives the module of a shape; MLA's is in latent.py, the PyTorch reference's in
torch_mha.py.
"""

import math

import torch
from torch import Tensor, nn

from headcount.layout import HeadLayout
from headcount.model.backends import attention_weights, backend
from headcount.model.cache import KVCache
from headcount.model.sight import Sight
from headcount.shape import ModelShape

Rotation = tuple[Tensor, Tensor]
"""cos and signed sin of the positions at hand, each (T, d) or (B, 1, T, d)."""
Maps = list[Tensor]
"""Filled with each layer's attention weights, (B, n_heads, T, S)."""


class Attention(nn.Module):
    """One attention block, causal or not.

    Query head i reads KV head `layout.kv_of[i]`. Queries, keys and values come from one fused
    projection; its rows are all query heads, then all key heads, then all value heads.

    Where pruning has left groups of different sizes, the smaller are filled up with a copy of some
    query for the kernel, and what comes of it is dropped: so keys and values are never copied.
    """

    slots: Tensor | None
    places: Tensor | None

    def __init__(
        self,
        shape: ModelShape,
        dropout: float = 0.0,
        backend_name: str = "sdpa",
        layout: HeadLayout | None = None,
    ) -> None:
        super().__init__()
        layout = self.layout = layout or shape.layout
        self.dropout = dropout
        self.backend = backend(backend_name)
        self.scale = 1 / math.sqrt(layout.d_head)  # Vaswani 2017, section 3.2.1
        self.qkv = nn.Linear(layout.d_model, sum(layout.input_widths), bias=shape.bias != "none")
        self.out = nn.Linear(layout.q_width, layout.d_model, bias=shape.bias == "all")
        slots, places = (None, None) if layout.is_even else _slots(layout)
        self.register_buffer("slots", slots, persistent=False)
        self.register_buffer("places", places, persistent=False)
        self.q_norm = nn.RMSNorm(layout.d_head, eps=shape.norm_eps) if shape.qk_norm else None
        self.k_norm = nn.RMSNorm(layout.d_head, eps=shape.norm_eps) if shape.qk_norm else None

    def forward(
        self,
        x: Tensor,
        sight: Sight,
        rotation: Rotation | None = None,
        cache: KVCache | None = None,
        layer: int = 0,
        maps: Maps | None = None,
    ) -> Tensor:
        """x: (B, T, d_model) → (B, T, d_model)."""
        q, k, v = self.project(x, rotation)
        if cache is not None:
            k, v = cache.append(layer, k, v)  # each (B, n_kv_heads, S, d_head), S = past + T
        if maps is not None:
            maps.append(self.weights(q, k, sight))
        dropout = self.dropout if self.training else 0.0  # SDPA itself ignores eval mode
        y = self.backend.attend(self._filled(q), k, v, sight, self.scale, dropout)
        y = self._dropped(y)  # (B, n_heads, T, d_head)
        return self.out(y.transpose(1, 2).flatten(2))

    def project(self, x: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, n_heads, T, d_head), keys and values (B, n_kv_heads, T, d_head) of x
        (B, T, d_model), in their positions."""
        a = self.layout
        heads = self.qkv(x).unflatten(-1, (a.n_heads + 2 * a.n_kv_heads, a.d_head)).transpose(1, 2)
        # (B, n_heads + 2·n_kv_heads, T, d_head); queries and keys turn together
        qk, v = heads.split([a.n_heads + a.n_kv_heads, a.n_kv_heads], dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = qk.split([a.n_heads, a.n_kv_heads], dim=1)
            qk = torch.cat((self.q_norm(q), self.k_norm(k)), dim=1)
        if rotation is not None:
            qk = rotate(qk, *rotation)
        q, k = qk.split([a.n_heads, a.n_kv_heads], dim=1)
        return q, k, v

    def weights(self, q: Tensor, k: Tensor, sight: Sight) -> Tensor:
        """Attention weights of queries and keys as `project` gives them, (B, n_heads, T, S)."""
        return self._dropped(attention_weights(self._filled(q), k, sight, self.scale))

    def _filled(self, q: Tensor) -> Tensor:
        """Query heads in groups of one size: (B, n_kv_heads · group_size, T, d_head)."""
        return q if self.slots is None else q[:, self.slots]

    def _dropped(self, y: Tensor) -> Tensor:
        """The query heads alone, (B, n_heads, T, …)."""
        return y if self.places is None else y[:, self.places]


class NoHeads(nn.Module):
    """A layer all of whose heads were pruned; of attention its output bias is left, if it had one."""

    def __init__(self, shape: ModelShape, layout: HeadLayout) -> None:
        super().__init__()
        self.layout = layout
        self.bias = nn.Parameter(torch.zeros(layout.d_model)) if shape.bias == "all" else None

    def forward(self, x: Tensor, *_: object) -> Tensor:
        """x: (B, T, d_model) → (B, T, d_model)."""
        return torch.zeros_like(x) if self.bias is None else self.bias.expand_as(x)


def _slots(layout: HeadLayout) -> tuple[Tensor, Tensor]:
    """Which query head stands in each slot of equal groups, and in which slot each query head
    stands."""
    places = [
        kv * layout.group_size + layout.kv_of[:head].count(kv)
        for head, kv in enumerate(layout.kv_of)
    ]
    slots = [0] * (layout.n_kv_heads * layout.group_size)
    for head, place in enumerate(places):
        slots[place] = head
    return torch.tensor(slots), torch.tensor(places)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding (Su 2021) in the half-split pairing: x (B, heads, T, d). The first half of
    `sin` carries the minus sign of the rotation."""
    left, right = x.chunk(2, dim=-1)
    return torch.addcmul(x * cos, torch.cat((right, left), dim=-1), sin)


def rotation_table(n_positions: int, d: int, theta: float) -> Tensor:
    """cos and signed sin of every position's angles, stacked: (2, n_positions, d)."""
    frequency = theta ** (-torch.arange(0, d, 2, dtype=torch.float32) / d)
    angle = torch.outer(torch.arange(n_positions, dtype=torch.float32), frequency)
    cos, sin = angle.cos(), angle.sin()  # (n_positions, d/2)
    return torch.stack((torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)))
