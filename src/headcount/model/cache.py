"""The KV cache: keys and values of past tokens, preallocated, for n_kv_heads only."""

import torch
from torch import Tensor

from headcount.shape import ModelShape


class KVCache:
    """Room for `max_len` tokens of `batch_size` sequences in every layer of a model.

    Keys and values lie as (n_layers, batch, n_kv_heads, max_len, d_head): one head's tokens are
    neighbours, which is the order a decode step reads them in.
    """

    def __init__(
        self,
        shape: ModelShape,
        batch_size: int,
        max_len: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        layout = shape.layout
        size = (shape.n_layers, batch_size, layout.n_kv_heads, max_len, layout.d_head)
        self.k = torch.zeros(size, dtype=dtype, device=device)
        self.v = torch.zeros(size, dtype=dtype, device=device)
        self.max_len = max_len
        self.length = 0
        """Tokens held, the same in every layer."""

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write new keys and values, each (B, n_kv_heads, T, d_head), behind those held; return views
        of all, each (B, n_kv_heads, length + T, d_head). `advance` follows once a forward."""
        end = self.length + k.size(2)
        self.k[layer, :, :, self.length : end] = k
        self.v[layer, :, :, self.length : end] = v
        return self.k[layer, :, :, :end], self.v[layer, :, :, :end]

    def reserve(self, n_tokens: int) -> None:
        """Refuse (ValueError) tokens that would not fit, before any layer has written one."""
        if self.length + n_tokens > self.max_len:
            raise ValueError(
                f"KV cache overflow: {self.length} + {n_tokens} tokens > max_len {self.max_len}"
            )

    def advance(self, n_tokens: int) -> None:
        self.length += n_tokens

    def truncate(self, length: int) -> None:
        """Forget all tokens from `length` on."""
        self.length = min(self.length, length)

    @property
    def allocated_bytes(self) -> int:
        return self.k.nbytes + self.v.nbytes

    @property
    def used_bytes(self) -> int:
        return self.allocated_bytes * self.length // self.max_len

    @property
    def bytes_per_token(self) -> int:
        """All layers, one sequence, read off the live tensors."""
        batch_size = self.k.size(1)
        return self.allocated_bytes // (batch_size * self.max_len)
