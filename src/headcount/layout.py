"""HeadLayout: how one attention block divides its width among heads, and what that costs.

The noun that the model, the measurement, the planner and the report all speak of. No torch here,
so that planning and reporting stay light.

    single  n_heads = 1                   q: [████████]          kv: [████████]
    mha     n_kv_heads = n_heads          q: [██][██][██][██]    kv: [██][██][██][██]
    gqa     1 < n_kv_heads < n_heads      q: [██][██][██][██]    kv: [██]    [██]
    mqa     n_kv_heads = 1 < n_heads      q: [██][██][██][██]    kv: [██]
    mla     d_latent > 0                  q: [██][██][██][██]    kv: [█] → [██][██][██][██]

MLA caches one latent a token, from which every head's key and value are expanded; a rotary part of
the key, `d_rope` wide, is shared by all heads (DeepSeek-V2, section 2.1).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from headcount.errors import LayoutError

Kind = Literal["single", "mha", "gqa", "mqa", "mla"]


@dataclass(frozen=True, order=True)
class HeadLayout:
    """An attention block's division into heads, valid by construction.

    d_model: width of the residual stream. n_heads: query heads. n_kv_heads: key/value heads, each
    shared by `group_size` query heads. d_head: width of one head; `n_heads * d_head` need not equal
    `d_model`. d_latent: width of MLA's cached latent, 0 for every other kind. d_rope: width that MLA
    adds to queries and keys for their positions, 0 without RoPE. reads: where pruning has left groups
    of different sizes, the KV head that each query head reads; such a layer may have no head at all.
    Raises LayoutError, in one line that names the keys and the nearest valid values.
    """

    d_model: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_latent: int = 0
    d_rope: int = 0
    reads: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.reads is not None:
            self._check_reads(self.reads)
            return
        for key in ("d_model", "n_heads", "n_kv_heads", "d_head"):
            value = getattr(self, key)
            if value < 1:
                raise LayoutError(f"model.{key}={value}: must be at least 1")
        for key in ("d_latent", "d_rope"):
            value = getattr(self, key)
            if value < 0:
                raise LayoutError(f"model.{key}={value}: must be at least 0")
        if self.d_rope and not self.d_latent:
            raise LayoutError(
                f"model.d_rope={self.d_rope} with model.d_latent=0: only attention=mla has it; "
                "valid: d_rope 0, or a d_latent of at least 1"
            )
        if self.d_latent and self.n_kv_heads != self.n_heads:
            raise LayoutError(
                f"model.n_kv_heads={self.n_kv_heads} with attention=mla expands a key and a value for "
                f"each of model.n_heads={self.n_heads}; valid: {self.n_heads}"
            )
        if self.n_heads % self.n_kv_heads:
            raise LayoutError(
                f"model.n_kv_heads={self.n_kv_heads} does not divide model.n_heads={self.n_heads}; "
                f"nearest valid: {_nearest(self.n_kv_heads, divisors(self.n_heads))}"
            )

    def _check_reads(self, reads: tuple[int, ...]) -> None:
        """Every KV head has a reader, and query heads stand in the order of what they read."""
        if list(reads) != sorted(reads) or set(reads) != set(range(len(set(reads)))):
            raise LayoutError(
                f"model.heads: a layer whose heads read KV heads {list(reads)}; valid: from 0 on, in "
                "order, without gaps"
            )
        if self.d_latent or (len(reads), len(set(reads))) != (self.n_heads, self.n_kv_heads):
            raise LayoutError(
                f"model.heads: {list(reads)} with n_heads={self.n_heads}, "
                f"n_kv_heads={self.n_kv_heads}, d_latent={self.d_latent}"
            )

    @classmethod
    def reading(cls, d_model: int, d_head: int, reads: Sequence[int]) -> "HeadLayout":
        """A layer whose query heads read these KV heads."""
        return cls(d_model, len(reads), len(set(reads)), d_head, reads=tuple(reads))

    @classmethod
    def of(
        cls,
        d_model: int,
        n_heads: int,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        d_latent: int = 0,
        d_rope: int = 0,
    ) -> "HeadLayout":
        """Fill in what is left out: n_kv_heads = n_heads, d_head = d_model / n_heads."""
        if d_head is None:
            if d_model < 1 or n_heads < 1:
                key, value = ("d_model", d_model) if d_model < 1 else ("n_heads", n_heads)
                raise LayoutError(f"model.{key}={value}: must be at least 1")
            if d_model % n_heads:
                raise LayoutError(
                    f"model.n_heads={n_heads} does not divide model.d_model={d_model}; "
                    f"nearest valid n_heads: {_nearest(n_heads, divisors(d_model))}, "
                    f"nearest valid d_model: {_multiples_around(d_model, n_heads)}, "
                    "or set model.d_head"
                )
            d_head = d_model // n_heads
        n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
        return cls(d_model, n_heads, n_kv_heads, d_head, d_latent, d_rope)

    @property
    def kind(self) -> Kind:
        """The family the numbers belong to; MHA with 8 heads *is* GQA with 8 KV heads."""
        if self.d_latent:
            return "mla"
        if self.n_heads == 1:
            return "single"
        if self.n_kv_heads == self.n_heads:
            return "mha"
        return "mqa" if self.n_kv_heads == 1 else "gqa"

    @property
    def group_size(self) -> int:
        """Query heads that share one KV head; the most that do, where groups differ."""
        if self.reads is None:
            return self.n_heads // self.n_kv_heads
        return max((self.reads.count(head) for head in self.reads), default=1)

    @property
    def kv_of(self) -> tuple[int, ...]:
        """The KV head that each query head reads."""
        if self.reads is not None:
            return self.reads
        return tuple(head // self.group_size for head in range(self.n_heads))

    @property
    def is_even(self) -> bool:
        """Whether every KV head has as many query heads."""
        return self.n_heads == self.n_kv_heads * self.group_size

    @property
    def q_width(self) -> int:
        """Total width of the queries, `n_heads * d_head`."""
        return self.n_heads * self.d_head

    @property
    def kv_width(self) -> int:
        """Total width of the keys (and of the values), `n_kv_heads * d_head`."""
        return self.n_kv_heads * self.d_head

    @property
    def d_rotary(self) -> int:
        """Width of a head that RoPE turns: all of it, or MLA's decoupled part."""
        return self.d_rope if self.d_latent else self.d_head

    @property
    def label(self) -> str:
        """A short name for tables and legends: `mha h8`, `gqa h8/kv2`, `mla h8/c64+16`."""
        shared = f"/kv{self.n_kv_heads}" if self.kind in ("gqa", "mqa") else ""
        if self.d_latent:
            shared = f"/c{self.d_latent}" + (f"+{self.d_rope}" if self.d_rope else "")
        wide = "" if self.q_width == self.d_model else f" d{self.d_head}"
        return f"{self.kind} h{self.n_heads}{shared}{wide}"

    # -- projections -----------------------------------------------------------------------------

    @property
    def input_widths(self) -> tuple[int, int, int]:
        """What the fused input projection gives: queries, keys, values; under MLA: queries with
        their rotary part, the latent, the shared rotary key."""
        if self.d_latent:
            return self.q_width + self.n_heads * self.d_rope, self.d_latent, self.d_rope
        return self.q_width, self.kv_width, self.kv_width

    @property
    def n_params(self) -> int:
        """Attention weights of one layer, no bias: `d_model·d_head·(2·n_heads + 2·n_kv_heads)`; MLA:
        the input projection, the expansion of the latent and the output projection."""
        expansion = self.d_latent * 2 * self.kv_width
        return self.d_model * (sum(self.input_widths) + self.q_width) + expansion

    # -- arithmetic ------------------------------------------------------------------------------

    @property
    def pair_width(self) -> int:
        """Multiply-accumulates of one query-key pair over all heads, score and weighted value:
        `2·n_heads·d_head`; MLA expanded: `n_heads·(2·d_head + d_rope)`."""
        return self.n_heads * (2 * self.d_head + self.d_rope)

    @property
    def decode_pair_width(self) -> int:
        """The same at decode. MLA then scores and sums latents, which every head reads whole:
        `n_heads·(2·d_latent + d_rope)`."""
        if self.d_latent:
            return self.n_heads * (2 * self.d_latent + self.d_rope)
        return self.pair_width

    # -- cache -----------------------------------------------------------------------------------

    @property
    def cached(self) -> tuple[tuple[int, int], ...]:
        """The tensors a layer caches, each (heads, width): keys and values, or MLA's one latent with
        the rotary key behind it."""
        if self.d_latent:
            return ((1, self.d_latent + self.d_rope),)
        return ((self.n_kv_heads, self.d_head), (self.n_kv_heads, self.d_head))

    def kv_bytes_per_token(self, itemsize: int) -> int:
        """KV-cache bytes of one token in one layer: `2·n_kv_heads·d_head·itemsize`; MLA:
        `(d_latent + d_rope)·itemsize`."""
        return sum(heads * width for heads, width in self.cached) * itemsize


def divisors(n: int) -> list[int]:
    """All positive divisors of n, ascending."""
    small = [k for k in range(1, int(n**0.5) + 1) if n % k == 0]
    return sorted({*small, *(n // k for k in small)})


def _nearest(value: int, valid: list[int]) -> str:
    """The nearest valid value on either side of `value`."""
    below = [v for v in valid if v < value][-1:]
    above = [v for v in valid if v > value][:1]
    return " or ".join(map(str, below + above))


def _multiples_around(value: int, of: int) -> str:
    low = value // of * of
    return " or ".join(str(m) for m in (low, low + of) if m > 0)
