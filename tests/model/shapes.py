"""Small shapes that the model's tests share, and how to run one attention block by itself."""

from typing import Any, cast

import torch
from torch import Tensor

from headcount.layout import HeadLayout
from headcount.model import KVCache, Transformer
from headcount.model.attention import Attention, Maps
from headcount.model.sight import Sight
from headcount.shape import ModelShape

SINGLE = HeadLayout(32, 1, 1, 32)
MHA = HeadLayout(32, 4, 4, 8)
GQA = HeadLayout(32, 8, 2, 4)
MQA = HeadLayout(32, 4, 1, 8)
MLA = HeadLayout(32, 4, 4, 8, d_latent=12, d_rope=4)
WIDE = HeadLayout(32, 4, 2, 12)  # n_heads · d_head ≠ d_model
LAYOUTS = {"single": SINGLE, "mha": MHA, "gqa": GQA, "mqa": MQA, "mla": MLA, "wide": WIDE}


def small_shape(layout: HeadLayout = GQA, **changes: Any) -> ModelShape:
    """Two layers on a vocabulary of 40; `changes` name any other field of ModelShape."""
    fields: dict[str, Any] = {
        "n_layers": 2,
        "d_ff": 48,
        "mlp": "swiglu",
        "position": "rope",
        "norm": "rmsnorm",
        "tie_embeddings": False,
        "inputs": "tokens",
        "n_inputs": 40,
        "n_outputs": 40,
        "max_len": 24,
    }
    return ModelShape(layout=layout, **(fields | changes))


def without_position(layout: HeadLayout) -> HeadLayout:
    """The same layout for a shape that has no RoPE."""
    return HeadLayout(
        layout.d_model, layout.n_heads, layout.n_kv_heads, layout.d_head, layout.d_latent
    )


def first_attention(model: Transformer) -> Attention:
    return cast(Attention, model.blocks[0].attention)


def run_block(
    model: Transformer,
    x: Tensor,
    chunks: list[int] | None = None,
    lengths: Tensor | None = None,
    maps: Maps | None = None,
) -> Tensor:
    """The model's first attention block on x (B, T, d_model); in chunks through a cache, if given."""
    attention, causal = first_attention(model), model.shape.causal
    if chunks is None:
        t = x.size(1)
        sight = Sight(causal, t, t, x.device, lengths=lengths)
        return attention(x, sight, model._rotation(0, t, None, x), maps=maps)
    cache = KVCache(model.shape, x.size(0), x.size(1), dtype=x.dtype)
    outputs = []
    for piece in x.split(chunks, dim=1):
        start, t = cache.length, piece.size(1)
        sight = Sight(causal, t, start + t, x.device)
        rotation = model._rotation(start, start + t, None, x)
        outputs.append(attention(piece, sight, rotation, cache, layer=0, maps=maps))
        cache.advance(t)
    return torch.cat(outputs, dim=1)
