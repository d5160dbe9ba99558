"""PyTorch's own nn.MultiheadAttention as a backend: the reference on the same weights.

Its function is called with this package's parameters (the fused projection has the same row order),
so a checkpoint moves between backends unchanged.
"""

import warnings

import torch.nn.functional as F
from torch import Tensor

from headcount.errors import RequestError
from headcount.model.attention import Attention, Maps, Rotation
from headcount.model.backends import note
from headcount.model.cache import KVCache
from headcount.model.sight import Sight
from headcount.shape import ModelShape, torch_mha_lacks


class TorchMHA(Attention):
    """One attention block through nn.MultiheadAttention's forward. Behind a cache, which that module
    does not know, the sdpa backend runs instead, with a warning."""

    def __init__(self, shape: ModelShape, dropout: float = 0.0) -> None:
        super().__init__(shape, dropout, "sdpa")
        lacks = torch_mha_lacks(shape)
        if lacks:
            raise RequestError(lacks)

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
        if cache is not None:
            warnings.warn(
                "model.backend=torch_mha has no KV cache: sdpa runs instead", stacklevel=2
            )
            return super().forward(x, sight, rotation, cache, layer, maps)
        if sight.lengths is not None and not bool(sight.lengths.all()):
            raise ValueError("model.backend=torch_mha: a row of no tokens would come out as NaN")
        note("torch_mha", "none to share")
        y, _ = self._reference(x, sight, need_weights=False)
        if maps is not None:
            _, weights = self._reference(x, sight, need_weights=True)
            assert weights is not None
            maps.append(weights)
        return y

    def _reference(
        self, x: Tensor, sight: Sight, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        a = self.layout
        hidden = None if sight.is_open else ~sight.allowed  # PyTorch's True means hidden
        y, weights = F.multi_head_attention_forward(
            *(x.transpose(0, 1),) * 3,  # (T, B, d_model) each
            embed_dim_to_check=a.d_model,
            num_heads=a.n_heads,
            in_proj_weight=self.qkv.weight,
            in_proj_bias=self.qkv.bias,
            bias_k=None,
            bias_v=None,
            add_zero_attn=False,
            dropout_p=self.dropout,
            out_proj_weight=self.out.weight,
            out_proj_bias=self.out.bias,
            training=self.training,
            attn_mask=_per_head(hidden, x.size(0), a.n_heads),
            need_weights=need_weights,
            average_attn_weights=False,
        )
        return y.transpose(0, 1), weights


def _per_head(hidden: Tensor | None, batch_size: int, n_heads: int) -> Tensor | None:
    """(1 or B, 1, T, S) → (T, S), or (B · n_heads, T, S) where rows differ."""
    if hidden is None or hidden.size(0) == 1:
        return None if hidden is None else hidden[0, 0]
    return hidden.expand(batch_size, n_heads, -1, -1).flatten(0, 1)
