"""The shapes that are compared."""

from typing import Literal

from headcount.layout import HeadLayout
from headcount.shape import ModelShape


def shape(
    d_model: int,
    n_layers: int,
    n_heads: int,
    n_kv_heads: int | None = None,
    family: Literal["llama", "gpt", "gpt-rope"] = "llama",
    max_len: int = 256,
) -> ModelShape:
    """A byte-level model: Llama's RoPE, RMSNorm and SwiGLU; GPT-2's learned positions, LayerNorm,
    GELU and tied embeddings; or the latter with RoPE in place of the learned table."""
    llama = family == "llama"
    return ModelShape(
        layout=HeadLayout.of(d_model, n_heads, n_kv_heads),
        n_layers=n_layers,
        d_ff=-(-8 * d_model // 24) * 8 if llama else 4 * d_model,
        mlp="swiglu" if llama else "gelu",
        position="learned" if family == "gpt" else "rope",
        norm="rmsnorm" if llama else "layernorm",
        tie_embeddings=not llama,
        inputs="tokens",
        n_inputs=256,
        n_outputs=256,
        max_len=max_len,
    )


# Training: name, shape without its heads' sharing, batch size, tokens.
TRAINING = {
    "small": {"d_model": 128, "n_layers": 4, "n_heads": 8, "batch_size": 32, "seq_len": 128},
    "medium": {"d_model": 256, "n_layers": 6, "n_heads": 8, "batch_size": 16, "seq_len": 256},
}

# Decoding: d_model 512, 4 layers, 16 heads over 16, 2 and 1 KV heads.
DECODE_LAYOUTS = {"MHA": 16, "GQA-2": 2, "MQA": 1}
DECODE_PLACES = ((1, 512), (1, 4096), (16, 4096))
"""Batch size and context."""


def decode_shape(n_kv_heads: int) -> ModelShape:
    return shape(512, 4, 16, n_kv_heads, max_len=8192)
