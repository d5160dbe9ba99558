"""The KV cache: what a layout keeps of past tokens, preallocated and written in place."""

import torch
from torch import Tensor

from headcount.shape import ModelShape


class KVCache:
    """Room for `max_len` tokens of `batch_size` sequences in every layer of a model.

    Each tensor that the layout caches (keys and values of n_kv_heads, or MLA's latent) lies as
    (n_layers, batch, heads, max_len, width): one head's tokens are neighbours, which is the order a
    decode step reads them in. Where layers differ in heads, each has tensors of its own. Rows may hold different numbers of tokens (prompts of ragged length).
    """

    def __init__(
        self,
        shape: ModelShape,
        batch_size: int,
        max_len: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        def room(*size: int) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=device)

        if shape.layers:
            self._layers = [
                tuple(room(batch_size, heads, max_len, width) for heads, width in layer.cached)
                for layer in shape.layers
            ]
            self.tensors = tuple(t for layer in self._layers for t in layer)
        else:
            self.tensors = tuple(
                room(shape.n_layers, batch_size, heads, max_len, width)
                for heads, width in shape.layout.cached
            )
            self._layers = [tuple(t[i] for t in self.tensors) for i in range(shape.n_layers)]
        self.batch_size = batch_size
        self.max_len = max_len
        self.length = 0
        """Tokens held, the same in every layer; in a ragged batch those of the longest row."""
        self.lengths: Tensor | None = None
        """(B,) tokens held by each row, or None where all hold `length`."""

    def append(self, layer: int, *new: Tensor) -> tuple[Tensor, ...]:
        """Write what a layer caches of new tokens, each (B, heads, T, width), behind what is held;
        return views of all, each (B, heads, length + T, width). `advance` follows once a forward."""
        t = new[0].size(2)
        held = []
        for room, piece in zip(self._layers[layer], new, strict=True):
            if room.dtype != piece.dtype:
                raise ValueError(f"a KV cache of {room.dtype} cannot take {piece.dtype}")
            if self.lengths is None:
                room.narrow(2, self.length, t).copy_(piece)
            else:
                room.scatter_(2, self._places(piece), piece)
            held.append(room.narrow(2, 0, self.length + t))
        return tuple(held)

    def _places(self, piece: Tensor) -> Tensor:
        """Where each row's new tokens go, as a scatter index of the piece's shape."""
        assert self.lengths is not None
        place = self.lengths[:, None] + torch.arange(piece.size(2), device=piece.device)  # (B, T)
        return place[:, None, :, None].expand_as(piece)

    def reserve(self, n_tokens: int) -> None:
        """Refuse (ValueError) tokens that would not fit, before any layer has written one."""
        if self.length + n_tokens > self.max_len:
            raise ValueError(
                f"KV cache overflow: {self.length} + {n_tokens} tokens > max_len {self.max_len}"
            )

    def advance(self, n_tokens: int, lengths: Tensor | None = None) -> None:
        """Count the tokens that every layer has written; `lengths` (B,) of them are real in each row,
        and what was written behind them is overwritten next."""
        if lengths is not None:
            self.lengths = lengths if self.lengths is None else self.lengths + lengths
            self.length = int(self.lengths.max())
        else:
            self.length += n_tokens
            if self.lengths is not None:
                self.lengths = self.lengths + n_tokens

    def truncate(self, length: int) -> None:
        """Forget all tokens from `length` on."""
        self.length = min(self.length, length)
        if self.lengths is not None:
            self.lengths = self.lengths.clamp(max=length) if length else None

    @property
    def allocated_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def used_bytes(self) -> int:
        """Bytes of the tokens held, over all rows."""
        rows = self.length * self.batch_size
        held = rows if self.lengths is None else int(self.lengths.sum())
        return held * self.bytes_per_token

    @property
    def bytes_per_token(self) -> int:
        """All layers, one sequence, read off the live tensors."""
        return self.allocated_bytes // (self.batch_size * self.max_len)
