"""Sight: which keys the queries of one forward may look at, made once for all layers."""

from typing import Any

import torch
from torch import Tensor


class Sight:
    """T queries at the end of S keys, or, in a ragged batch, where each row says.

    causal: a query sees no key behind its own position. starts: (B,) position of each row's first
    query; None puts the last query at the last key, S − T for all rows. lengths: (B,) keys a row
    really holds; None is all S. documents: (B, T), over a whole sequence: a query sees the keys of
    its own document alone. A query that may see nothing gets zeros from every backend.
    """

    def __init__(
        self,
        causal: bool,
        t: int,
        s: int,
        device: torch.device,
        starts: Tensor | None = None,
        lengths: Tensor | None = None,
        documents: Tensor | None = None,
    ) -> None:
        self.causal = causal
        self.t = t
        self.s = s
        self.device = device
        self.starts = starts
        # A causal query sits among the keys its row holds, so it never sees beyond them.
        self.lengths = None if causal else lengths
        self.documents = documents
        self._grouped: dict[int, Tensor] = {}  # by group size; 1 is the plain mask
        self.block_mask: Any = None
        """The flex backend's form of this sight, once it has made it."""

    @property
    def is_square(self) -> bool:
        """Causal over a whole sequence: what a kernel's own causal flag means. (PyTorch aligns the
        flag top-left, which is wrong for T < S.)"""
        whole = 1 < self.t == self.s and self.starts is None
        return self.causal and whole and self.documents is None

    @property
    def is_open(self) -> bool:
        """Every query sees every key."""
        hides = self.causal and (self.t > 1 or self.starts is not None)
        return not hides and self.lengths is None and self.documents is None

    @property
    def first_places(self) -> Tensor:
        """(1 or B,) position of the first query among the keys."""
        if self.starts is not None:
            return self.starts
        return torch.tensor([self.s - self.t], device=self.device)

    @property
    def allowed(self) -> Tensor:
        """(1 or B, 1, T, S), True where query i may look at key j."""
        return self.grouped(1)

    def grouped(self, group: int) -> Tensor:
        """`allowed` for query rows: `group` heads of T queries each, (1 or B, 1, group·T, S)."""
        if group not in self._grouped:
            self._grouped[group] = self._mask().repeat(1, 1, group, 1)
        return self._grouped[group]

    def rows(self, start: int, end: int) -> "Sight":
        """What the queries from `start` to `end` see: the same keys, fewer rows."""
        starts = self.first_places + start
        part = Sight(
            self.causal, end - start, self.s, self.device, starts, self.lengths, self.documents
        )
        part._grouped[1] = self.allowed[:, :, start:end]
        return part

    def _mask(self) -> Tensor:
        key = torch.arange(self.s, device=self.device)
        allowed = key.new_ones(1, 1, self.t, self.s, dtype=torch.bool)
        if self.causal:
            query = torch.arange(self.t, device=self.device)
            place = self.first_places[:, None] + query  # (1 or B, T)
            allowed = allowed & (key <= place[..., None]).unsqueeze(1)
        if self.lengths is not None:
            allowed = allowed & (key < self.lengths[:, None])[:, None, None]
        if self.documents is not None:
            same = self.documents[:, :, None] == self.documents[:, None, :]  # (B, T, S), S = T
            allowed = allowed & same[:, None]
        return allowed
