"""A pre-norm transformer around the attention block; the head layout is one of its parameters."""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headcount.model.attention import Attention, rotation_table
from headcount.model.cache import KVCache
from headcount.seeding import generator
from headcount.shape import ModelShape


class MLP(nn.Module):
    """SwiGLU (gate and up fused in one matrix) or GELU."""

    def __init__(self, d_model: int, d_ff: int, kind: str) -> None:
        super().__init__()
        self.gated = kind == "swiglu"
        self.up = nn.Linear(d_model, d_ff * (2 if self.gated else 1), bias=False)
        self.down = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, d_model) → (B, T, d_model)."""
        h = self.up(x)
        if self.gated:
            gate, h = h.chunk(2, dim=-1)  # each (B, T, d_ff)
            return self.down(F.silu(gate) * h)
        return self.down(F.gelu(h))


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)) where there is an MLP."""

    def __init__(self, shape: ModelShape, dropout: float) -> None:
        super().__init__()
        d_model = shape.layout.d_model
        self.attention_norm = norm(shape)
        self.attention = Attention(shape.layout, dropout, shape.causal)
        self.mlp_norm = norm(shape) if shape.mlp != "none" else None
        self.mlp = MLP(d_model, shape.d_ff, shape.mlp) if shape.mlp != "none" else None
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        rotation: tuple[Tensor, Tensor] | None,
        cache: KVCache | None,
        layer: int,
    ) -> Tensor:
        """(B, T, d_model) → (B, T, d_model)."""
        x = x + self.dropout(self.attention(self.attention_norm(x), rotation, cache, layer))
        if self.mlp is not None and self.mlp_norm is not None:
            x = x + self.dropout(self.mlp(self.mlp_norm(x)))
        return x


class Transformer(nn.Module):
    """The model of a ModelShape.

    `seed` draws every weight from a stream of its own, named by the parameter: layouts that share
    a matrix's shape start from the same matrix, and no other random draw is disturbed.
    """

    rotation: Tensor

    def __init__(self, shape: ModelShape, dropout: float = 0.0, seed: int = 0) -> None:
        super().__init__()
        self.shape = shape
        d_model = shape.layout.d_model
        self.embed: nn.Module = (
            nn.Embedding(shape.n_inputs, d_model)
            if shape.inputs == "tokens"
            else nn.Linear(shape.n_inputs, d_model, bias=False)
        )
        self.position = (
            nn.Embedding(shape.max_len, d_model) if shape.position == "learned" else None
        )
        self.blocks = nn.ModuleList(Block(shape, dropout) for _ in range(shape.n_layers))
        self.norm = norm(shape)
        self.head = nn.Linear(d_model, shape.n_outputs, bias=False)
        if shape.tie_embeddings:
            self.head.weight = self.embed.weight
        self.dropout = nn.Dropout(dropout)
        table = (
            rotation_table(shape.max_len, shape.layout.d_head) if shape.position == "rope" else None
        )
        self.register_buffer("rotation", table, persistent=False)
        self.initialise(seed)

    def forward(
        self, inputs: Tensor, cache: KVCache | None = None, last_only: bool = False
    ) -> Tensor:
        """inputs: (B, T) tokens or (B, T, n_inputs) vectors → (B, T, n_outputs).

        With a cache, the inputs continue what it holds and are added to it. `last_only` gives the
        last position alone, (B, 1, n_outputs), as generation needs it.
        """
        t = inputs.size(1)
        start = cache.length if cache is not None else 0
        if cache is not None:
            cache.reserve(t)
        x = self.embed(inputs)  # (B, T, d_model)
        if self.position is not None:
            if start + t > self.shape.max_len:
                raise ValueError(
                    f"{start + t} positions, but the learned table has {self.shape.max_len}"
                )
            x = x + self.position.weight[start : start + t]
        x = self.dropout(x)
        rotation = self._rotation(start, start + t, x.dtype)
        for layer, block in enumerate(self.blocks):
            x = block(x, rotation, cache, layer)
        if cache is not None:
            cache.advance(t)
        if last_only:
            x = x[:, -1:]
        return self.head(self.norm(x))

    def _rotation(self, start: int, end: int, dtype: torch.dtype) -> tuple[Tensor, Tensor] | None:
        """cos and sin for positions start to end, each (T, d_head); the table grows as needed."""
        if self.rotation is None:
            return None
        if end > self.rotation.size(1):
            longer = rotation_table(2 * end, self.shape.layout.d_head)
            self.rotation = longer.to(self.rotation)
        cos, sin = self.rotation[:, start:end].to(dtype)
        return cos, sin

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Normal weights of variance 1/fan_in; what writes into the residual stream is scaled down by
        sqrt(2·n_layers) (Radford 2019), so that depth does not raise the stream's variance."""
        residual = 1 / math.sqrt(2 * self.shape.n_layers)
        for name, part in named_matrices(self):
            if part.is_meta:
                continue
            fan_in = part.size(1)
            std = 0.02 if name.startswith(("embed", "position")) else 1 / math.sqrt(fan_in)
            if name.endswith((".out.weight", ".down.weight")):
                std *= residual
            part.normal_(0.0, std, generator=generator(seed, "weights", name, device=part.device))


def named_matrices(model: Transformer) -> Iterator[tuple[str, Tensor]]:
    """Every weight matrix by name; the fused qkv as its three parts, so that a layout's query matrix
    does not depend on how many KV heads stand behind it."""
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            continue
        if name.endswith("qkv.weight"):
            a = model.shape.layout
            parts = parameter.split([a.q_width, a.kv_width, a.kv_width])
            yield from ((f"{name}.{key}", part) for key, part in zip("qkv", parts, strict=True))
        else:
            yield name, parameter


def norm(shape: ModelShape) -> nn.Module:
    d_model = shape.layout.d_model
    return nn.RMSNorm(d_model) if shape.norm == "rmsnorm" else nn.LayerNorm(d_model, bias=False)
