"""Small shapes that the model's tests share."""

from typing import Any

from headcount.layout import HeadLayout
from headcount.shape import ModelShape

SINGLE = HeadLayout(32, 1, 1, 32)
MHA = HeadLayout(32, 4, 4, 8)
GQA = HeadLayout(32, 8, 2, 4)
MQA = HeadLayout(32, 4, 1, 8)
WIDE = HeadLayout(32, 4, 2, 12)  # n_heads · d_head ≠ d_model
LAYOUTS = {"single": SINGLE, "mha": MHA, "gqa": GQA, "mqa": MQA, "wide": WIDE}


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
