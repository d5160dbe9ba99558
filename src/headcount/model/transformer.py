"""A pre-norm transformer around the attention block; the head layout is one of its parameters."""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headcount.layout import HeadLayout
from headcount.model.attention import Attention, Maps, NoHeads, Rotation, rotation_table
from headcount.model.cache import KVCache
from headcount.model.latent import LatentAttention
from headcount.model.sight import Sight
from headcount.model.torch_mha import TorchMHA
from headcount.seeding import generator
from headcount.shape import ModelShape


class MLP(nn.Module):
    """GELU, or gated by SiLU or GELU (SwiGLU, GeGLU; Shazeer 2020) with gate and up in one matrix.

    GELU is its tanh approximation, as GPT-2 and Gemma have it (Hendrycks & Gimpel 2016)."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        d_model, d_ff, bias = shape.layout.d_model, shape.d_ff, shape.bias == "all"
        self.kind = shape.mlp
        self.up = nn.Linear(d_model, d_ff * (shape.mlp_matrices - 1), bias=bias)
        self.down = nn.Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, d_model) → (B, T, d_model)."""
        h = self.up(x)
        if self.kind == "gelu":
            return self.down(F.gelu(h, approximate="tanh"))
        gate, h = h.chunk(2, dim=-1)  # each (B, T, d_ff)
        gate = F.silu(gate) if self.kind == "swiglu" else F.gelu(gate, approximate="tanh")
        return self.down(gate * h)


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)) where there is an MLP."""

    def __init__(
        self,
        shape: ModelShape,
        layout: HeadLayout,
        dropout: float,
        attention_dropout: float,
        backend: str,
    ) -> None:
        super().__init__()
        self.attention_norm = norm(shape) if layout.n_heads else None
        self.attention = attention_block(shape, layout, attention_dropout, backend)
        self.mlp_norm = norm(shape) if shape.mlp != "none" else None
        self.mlp = MLP(shape) if shape.mlp != "none" else None
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        sight: Sight,
        rotation: Rotation | None,
        cache: KVCache | None,
        layer: int,
        maps: Maps | None,
    ) -> Tensor:
        """(B, T, d_model) → (B, T, d_model)."""
        given = x if self.attention_norm is None else self.attention_norm(x)
        x = x + self.dropout(self.attention(given, sight, rotation, cache, layer, maps))
        if self.mlp is not None and self.mlp_norm is not None:
            x = x + self.dropout(self.mlp(self.mlp_norm(x)))
        return x


def attention_block(
    shape: ModelShape, layout: HeadLayout, dropout: float, backend: str
) -> Attention | LatentAttention | NoHeads:
    """The attention module of a layer: `model.backend` torch_mha, or a kernel under our own."""
    if not layout.n_heads:
        return NoHeads(shape, layout)
    if backend == "torch_mha":
        return TorchMHA(shape, dropout)
    if shape.layout.d_latent:
        return LatentAttention(shape, dropout, backend)
    return Attention(shape, dropout, backend, layout)


class Transformer(nn.Module):
    """The model of a ModelShape.

    dropout acts on the residual branches and the embedding, attention_dropout on the attention
    weights. backend: eager, sdpa, flex or torch_mha; it changes how attention is computed, not what.
    `seed` draws every weight from a stream of its own, named by the parameter: layouts that share
    a matrix's shape start from the same matrix, and no other random draw is disturbed.
    """

    rotation: Tensor

    def __init__(
        self,
        shape: ModelShape,
        dropout: float = 0.0,
        seed: int = 0,
        attention_dropout: float = 0.0,
        backend: str = "sdpa",
    ) -> None:
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
        self.blocks = nn.ModuleList(
            Block(shape, layout, dropout, attention_dropout, backend)
            for layout in shape.layer_layouts
        )
        self.norm = norm(shape)
        self.head = nn.Linear(d_model, shape.n_outputs, bias=False)
        if shape.tie_embeddings:
            self.head.weight = self.embed.weight
        self.dropout = nn.Dropout(dropout)
        table = self._rotation_table(shape.max_len) if shape.position == "rope" else None
        self.register_buffer("rotation", table, persistent=False)
        self.initialise(seed)

    def forward(
        self,
        inputs: Tensor,
        cache: KVCache | None = None,
        last_only: bool = False,
        lengths: Tensor | None = None,
        maps: Maps | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        """inputs: (B, T) tokens or (B, T, n_inputs) vectors → (B, T, n_outputs).

        With a cache, the inputs continue what it holds and are added to it. `lengths` (B,) says how
        many inputs of each row are real; the rest is padding behind them, seen by no real query and
        not kept by the cache, and its outputs mean nothing. `last_only` gives each row's last
        real position alone, (B, 1, n_outputs), as generation needs it. `maps`, a list, is filled with
        each layer's attention weights, (B, n_heads, T, S); asking for them changes no output.
        `documents` (B, T) numbers the documents of packed sequences, which do not see one another.
        Raises ValueError for no inputs, for lengths outside 0…T, for an overflow of the cache and for
        documents with a cache.
        """
        t = inputs.size(1)
        if t == 0:
            raise ValueError("the model needs at least one input a row")
        if lengths is not None:
            check_lengths(lengths, inputs)
        start, starts = 0, None
        if cache is not None and documents is not None:
            raise ValueError("documents are of whole sequences: there is no cache of them")
        if cache is not None:
            cache.reserve(t)
            start, starts = cache.length, cache.lengths
        x = self.embed(inputs)  # (B, T, d_model)
        places = starts[:, None] + torch.arange(t, device=x.device) if starts is not None else None
        if self.position is not None:
            x = x + self._learned(start, start + t, places)
        x = self.dropout(x)
        held = lengths if starts is None or lengths is None else starts + lengths
        sight = Sight(self.shape.causal, t, start + t, x.device, starts, held, documents)
        rotation = self._rotation(start, start + t, places, x)
        for layer, block in enumerate(self.blocks):
            x = block(x, sight, rotation, cache, layer, maps)
        if cache is not None:
            cache.advance(t, lengths)
        if last_only:
            x = x[:, -1:] if lengths is None else last_real(x, lengths)
        return self.head(self.norm(x))

    def _learned(self, start: int, end: int, places: Tensor | None) -> Tensor:
        """Learned positions start to end, (T, d_model), or those of each row, (B, T, d_model)."""
        assert self.position is not None
        if end > self.shape.max_len:
            raise ValueError(f"{end} positions, but the learned table has {self.shape.max_len}")
        return self.position.weight[start:end] if places is None else self.position(places)

    def _rotation(self, start: int, end: int, places: Tensor | None, x: Tensor) -> Rotation | None:
        """cos and sin for positions start to end, each (T, d), or for those of each row, each
        (B, 1, T, d); in the type that attention computes in. The table grows as needed."""
        if self.rotation is None:
            return None
        if end > self.rotation.size(1):
            self.rotation = self._rotation_table(2 * end).to(self.rotation)
        dtype = compute_dtype(x)
        table = self.rotation[:, start:end] if places is None else self.rotation[:, places, None]
        if places is not None:
            table = table.transpose(2, 3)  # (2, B, 1, T, d)
        cos, sin = table.to(dtype)
        return cos, sin

    def _rotation_table(self, n_positions: int) -> Tensor:
        return rotation_table(n_positions, self.shape.layout.d_rotary, self.shape.rope_theta)

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Normal weights of variance 1/fan_in; what writes into the residual stream is scaled down by
        sqrt(2·n_layers) (Radford 2019), so that depth does not raise the stream's variance. Biases
        begin at zero."""
        residual = 1 / math.sqrt(2 * self.shape.n_layers)
        for name, part in named_matrices(self):
            if part.is_meta:
                continue
            fan_in = part.size(1)
            std = 0.02 if name.startswith(("embed", "position")) else 1 / math.sqrt(fan_in)
            if name.endswith((".out.weight", ".down.weight")):
                std *= residual
            part.normal_(0.0, std, generator=generator(seed, "weights", name, device=part.device))
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()


def named_matrices(model: Transformer) -> Iterator[tuple[str, Tensor]]:
    """Every weight matrix by name; the fused qkv as its three parts, so that a layout's query matrix
    does not depend on how many KV heads stand behind it."""
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            continue
        if name.endswith("qkv.weight"):
            layout = model.shape.layer_layouts[int(name.split(".")[1])]
            parts = parameter.split(layout.input_widths)
            yield from ((f"{name}.{key}", part) for key, part in zip("qkv", parts, strict=True))
        else:
            yield name, parameter


def norm(shape: ModelShape) -> nn.Module:
    d_model, eps = shape.layout.d_model, shape.norm_eps
    if shape.norm == "rmsnorm":
        return nn.RMSNorm(d_model, eps=eps)
    return nn.LayerNorm(d_model, eps=eps, bias=shape.bias == "all")


def compute_dtype(x: Tensor) -> torch.dtype:
    """The type that matrix products of x come out in: autocast's, where it is on."""
    device = x.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return x.dtype


def check_lengths(lengths: Tensor, inputs: Tensor) -> None:
    """Refuse (ValueError) lengths that the inputs cannot have."""
    rows, t = inputs.shape[:2]
    if lengths.shape != (rows,) or int(lengths.min()) < 0 or int(lengths.max()) > t:
        raise ValueError(f"lengths={lengths.tolist()}: must be {rows} numbers from 0 to {t}")


def last_real(x: Tensor, lengths: Tensor) -> Tensor:
    """Each row's last real position, (B, 1, d_model); an empty row gives its first, which is
    padding."""
    last = (lengths - 1).clamp(min=0)
    return x.gather(1, last[:, None, None].expand(-1, 1, x.size(2)))
