"""The measured grid: every layout at every context, batch size and phase, interleaved."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from headcount.config import Config, Measure
from headcount.errors import HeadcountError
from headcount.measure.clock import interleave
from headcount.measure.compare import Phase
from headcount.measure.inputs import DTYPES, free_bytes, random_inputs
from headcount.measure.kernels import kernel_of
from headcount.measure.protocol import measured_shape
from headcount.measure.roofline import Ceilings, work
from headcount.measure.training import TrainingStep
from headcount.model import KVCache, Transformer
from headcount.study import records

PHASES: tuple[Phase, ...] = ("prefill", "decode")


class Candidate:
    """One layout's model, ready to be timed."""

    def __init__(self, config: Config, device: torch.device) -> None:
        self.shape = measured_shape(config)
        self.backend = config.model.backend
        self.dtype_name = config.measure.dtype
        self.device = device
        self.model = (
            Transformer(self.shape, backend=self.backend).to(device, DTYPES[self.dtype_name]).eval()
        )
        self.points: list[records.Point] = []

    def open(self, context: int, batch_size: int) -> None:
        """Make the cache and the prompt of a place of the grid."""
        dtype = DTYPES[self.dtype_name]
        self.cache = KVCache(self.shape, batch_size, context, dtype, self.device)
        self.prompt = random_inputs(self.shape, batch_size, context, self.device, dtype)

    def call(self, phase: Phase) -> Callable[[], Tensor]:
        """One prefill into the empty cache, or one decode step that attends to the whole context;
        each call starts from the same cache length, so the context never grows."""
        start = 0 if phase == "prefill" else self.prompt.size(1) - 1
        inputs = self.prompt[:, start:]

        def run() -> Tensor:
            self.cache.truncate(start)
            return self.model(inputs, self.cache, last_only=True)

        return run

    def kv_cache(self) -> records.KVCache:
        """The cache as it lies in memory; HeadcountError where it is not what the formula says."""
        read, formula = self.cache.bytes_per_token, self.shape.kv_bytes_per_token(self.dtype_name)
        if read != formula:
            raise HeadcountError(
                f"{self.shape.layout.label}: the live KV cache holds {read} bytes a token, "
                f"the formula says {formula}"
            )
        return records.KVCache(
            bytes_per_token=read,
            allocated_bytes=self.cache.allocated_bytes,
            used_bytes=self.cache.used_bytes,
        )


@torch.inference_mode()
def measure_place(
    candidates: Sequence[Candidate], phase: Phase, context: int, batch_size: int, protocol: Measure
) -> None:
    """Time every candidate at one place, interleaved, and add the point to each.

    The candidates stand open at (context, batch_size); decode follows prefill, which has filled
    the cache.
    """
    calls = [candidate.call(phase) for candidate in candidates]
    kernels = [
        kernel_of(call, c.shape.layout, c.backend)
        for c, call in zip(candidates, calls, strict=True)
    ]
    device = candidates[0].device
    sampled = interleave(calls, device, protocol.repeats, protocol.warmup, seed=context)
    for candidate, kernel, samples in zip(candidates, kernels, sampled, strict=True):
        candidate.points.append(_point(phase, context, batch_size, samples, *kernel))


def measure_training(
    configs: Sequence[Config], device: torch.device, repeats: int
) -> list[records.Point]:
    """Time one whole training step of every configuration, interleaved."""
    steps = [TrainingStep(config, device) for config in configs]
    kernels = [
        kernel_of(step, config.layout, config.model.backend)
        for step, config in zip(steps, configs, strict=True)
    ]
    sampled = interleave(steps, device, repeats, warmup=1, min_ms=0, min_warmup_ms=0)
    return [
        _point("train", config.task.seq_len, config.task.batch_size, samples, *kernel)
        for config, kernel, samples in zip(configs, kernels, sampled, strict=True)
    ]


def _point(
    phase: Phase | Literal["train"],
    context: int,
    batch_size: int,
    samples: list[float],
    kernel: str,
    kv_sharing: str,
) -> records.Point:
    p50, p90, p99 = np.percentile(samples, [50, 90, 99]).tolist()
    return records.Point(
        phase=phase,
        context=context,
        batch_size=batch_size,
        samples_ms=[round(sample, 6) for sample in samples],
        p50_ms=p50,
        p90_ms=p90,
        p99_ms=p99,
        kernel=kernel,
        kv_sharing=kv_sharing,
    )


def bound_points(candidate: Candidate, ceilings: dict[str, Any]) -> list[records.Point]:
    """The candidate's points, each with its roofline bound."""
    roof = Ceilings.measured(ceilings, candidate.dtype_name)
    bounded = []
    for p in candidate.points:
        need = work(p.phase, candidate.shape, p.context, p.batch_size, candidate.dtype_name)
        ms, by = roof.bound(need)
        bounded.append(p.model_copy(update={"bound_ms": ms, "bound_by": by}))
    return bounded


def require_room(candidates: Sequence[Candidate], protocol: Measure) -> None:
    """Refuse (HeadcountError) a grid whose largest place does not fit the device with every
    candidate open, before anything of it is allocated."""
    tokens = max(protocol.contexts) * max(protocol.batch_sizes)
    need = sum(c.shape.kv_bytes_per_token(c.dtype_name) for c in candidates) * tokens
    free = free_bytes(candidates[0].device)
    if need > free:
        raise HeadcountError(
            f"the KV caches of {len(candidates)} layouts at context {max(protocol.contexts)} and "
            f"batch {max(protocol.batch_sizes)} need {need / 1e9:.1f} GB, {free / 1e9:.1f} GB are "
            "free; lower measure.contexts or measure.batch_sizes"
        )


def noise_floor(one: Sequence[records.Point], again: Sequence[records.Point]) -> float:
    """The largest relative difference of medians, over the grid, of one layout measured twice."""
    return max(
        abs(a.p50_ms - b.p50_ms) / min(a.p50_ms, b.p50_ms) for a, b in zip(one, again, strict=True)
    )
