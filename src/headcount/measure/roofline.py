"""The least time a step can take, from its arithmetic, its bytes and a device's ceilings. No torch.

    bound = max(FLOPs / peak, bytes / bandwidth)

Counted is what cannot be avoided: each weight read once, each cached key and value read once, scores
under a causal mask halved, logits of the last position alone. One multiply-accumulate is two FLOPs.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from headcount.shape import ITEMSIZE, ModelShape

Limit = Literal["compute", "memory"]


class Work(NamedTuple):
    """What a step has to do."""

    flops: int
    bytes: int


class Bound(NamedTuple):
    """The least milliseconds of a step, and the ceiling that sets it."""

    ms: float
    by: Limit


@dataclass(frozen=True)
class Ceilings:
    """What a device can do at best, in one dtype."""

    flops_per_s: float
    bytes_per_s: dict[int, float]
    """Bandwidth by the bytes it was measured over: what fits a cache is served faster."""

    @classmethod
    def measured(cls, ceilings: dict[str, Any], dtype: str) -> "Ceilings":
        """The ceilings of a session, as its cost records keep them under `environment`."""
        streams = {int(size): rate for size, rate in ceilings["bytes_per_s"].items()}
        return cls(ceilings["matmul_flops_per_s"][dtype], streams)

    def bandwidth(self, n_bytes: int) -> float:
        """The bandwidth for a working set: that of the smallest measured one to hold it."""
        fitting = [size for size in self.bytes_per_s if size >= n_bytes]
        return self.bytes_per_s[min(fitting) if fitting else max(self.bytes_per_s)]

    def bound(self, work: Work) -> Bound:
        compute = 1e3 * work.flops / self.flops_per_s
        memory = 1e3 * work.bytes / self.bandwidth(work.bytes)
        return Bound(compute, "compute") if compute >= memory else Bound(memory, "memory")


def prefill_work(shape: ModelShape, context: int, batch_size: int, dtype: str) -> Work:
    """A prompt of `context` tokens into an empty cache, logits of the last position."""
    head = shape.n_outputs * shape.layout.d_model
    products = 2 * ((shape.n_matmul - head) * context + head)
    # Full scores of the square, which a causal mask halves but for the diagonal.
    scores = shape.forward_flops(context) - 2 * shape.n_matmul * context
    if shape.causal:
        scores = scores * (context + 1) // (2 * context)
    written = batch_size * context * shape.kv_bytes_per_token(dtype)
    return Work(batch_size * (products + scores), _weights(shape, dtype) + written)


def decode_work(shape: ModelShape, context: int, batch_size: int, dtype: str) -> Work:
    """One step of `batch_size` sequences, each attending to `context` tokens."""
    read = batch_size * context * shape.kv_bytes_per_token(dtype)
    return Work(batch_size * shape.decode_flops(context), _weights(shape, dtype) + read)


def work(phase: str, shape: ModelShape, context: int, batch_size: int, dtype: str) -> Work:
    of = prefill_work if phase == "prefill" else decode_work
    return of(shape, context, batch_size, dtype)


def _weights(shape: ModelShape, dtype: str) -> int:
    """Bytes of the weights that a step reads whole; of the embedding it reads a few rows."""
    return shape.n_matmul * ITEMSIZE[dtype]


def shape_from(record: dict[str, Any]) -> ModelShape:
    """The model's shape as a cost record keeps it."""
    return ModelShape.from_dict(record)
