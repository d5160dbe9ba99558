"""Whether one layout is really faster than another: intervals, ties, and what cannot be compared.

Works on cost records alone, without torch.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headcount.study.records import Cost, Point

BUSY_CORES = 0.25
"""Cores kept busy by other processes from which a measurement cannot be compared with others."""

RESAMPLES = 2000

Phase = Literal["prefill", "decode"]
Verdict = Literal["faster", "slower", "tie", "not comparable"]


@dataclass(frozen=True)
class Comparison:
    """How `other` stands to `base` at one place of the grid."""

    ratio: float
    """Median of other over median of base: below 1, other is faster."""
    low: float
    high: float
    """95% bootstrap interval of the ratio."""
    noise_floor: float
    """Relative difference that the same layout measured twice showed."""
    verdict: Verdict
    """`tie`: within the noise floor, or the interval holds 1."""
    notes: tuple[str, ...]
    """Why the two cannot be compared, or what else differs between them."""


def compare(
    base: Cost, other: Cost, phase: Phase, context: int, batch_size: int
) -> Comparison | None:
    """How `other` stands to `base` at a place, or None where either was not measured there.

    Samples of one session were taken in pairs and are resampled in pairs, so that drift of the host
    cancels.
    """
    a, b = (cost.point(phase, context, batch_size) for cost in (base, other))
    if a is None or b is None:
        return None
    paired = _session(base) is not None and _session(base) == _session(other)
    low, high = ratio_interval(a.samples_ms, b.samples_ms, paired)
    ratio = b.p50_ms / a.p50_ms
    floor = max(base.noise_floor or 0.0, other.noise_floor or 0.0)
    obstacles = _obstacles(base, other)
    return Comparison(
        ratio=ratio,
        low=low,
        high=high,
        noise_floor=floor,
        verdict="not comparable" if obstacles else _verdict(ratio, low, high, floor),
        notes=(*obstacles, *_differences(a, b), *([] if paired else ["different sessions"])),
    )


def _verdict(ratio: float, low: float, high: float, floor: float) -> Verdict:
    # Relative to the smaller of the two, as the noise floor itself is.
    difference = max(ratio, 1 / ratio) - 1
    if difference <= floor or low <= 1 <= high:
        return "tie"
    return "faster" if ratio < 1 else "slower"


def median_interval(samples: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Bootstrap percentile interval of the median."""
    values = np.asarray(samples)
    return _interval(np.median(values[_draws(values.size)], axis=1), level)


def ratio_interval(
    base: Sequence[float], other: Sequence[float], paired: bool, level: float = 0.95
) -> tuple[float, float]:
    """Bootstrap percentile interval of median(other) / median(base). `paired`: sample i of one was
    taken next to sample i of the other, and both are drawn together."""
    a, b = np.asarray(base), np.asarray(other)
    draws = _draws(a.size)
    other_draws = draws if paired and a.size == b.size else _draws(b.size, seed=1)
    ratios = np.median(b[other_draws], axis=1) / np.median(a[draws], axis=1)
    return _interval(ratios, level)


def disturbed(cost: Cost) -> bool:
    """Whether other processes kept the host busy while this record was measured."""
    busy: float = cost.environment.get("co_running_cores", 0.0)
    return busy > BUSY_CORES


def mixtures(costs: Iterable[Cost]) -> dict[str, list[str]]:
    """What differs between cost records that are shown together, by name: its values.

    A latency axis over several devices, dtypes, kernels or protocols is no axis of heads alone; an
    empty answer means that it is.
    """
    seen: dict[str, set[str]] = {}
    for cost in costs:
        facts: dict[str, Any] = {
            "device": cost.device,
            "dtype": cost.dtype,
            "backend": cost.backend,
            "threads": cost.protocol.get("threads"),
            "protocol version": cost.protocol.get("version"),
            "torch": cost.environment.get("torch"),
            "session": _session(cost),
        }
        for name, value in facts.items():
            seen.setdefault(name, set()).add(str(value))
        for point in cost.points:
            seen.setdefault(f"{point.phase} kernel", set()).add(point.kernel)
    return {name: sorted(values) for name, values in seen.items() if len(values) > 1}


@dataclass(frozen=True)
class KernelChoice:
    """One layout's latency with the kernel that all layouts share, and with its own best."""

    layout: str
    fixed_ms: float | None
    """With the fixed backend; None where it was not measured."""
    best_ms: float
    best_backend: str


def fixed_and_best(
    costs: Iterable[Cost], fixed: str, phase: Phase, context: int, batch_size: int
) -> list[KernelChoice]:
    """Both readings of latency against heads, from records that differ in layout and backend.

    Where the two curves differ in shape, the difference is a kernel's, not the heads'.
    """
    by_layout: dict[str, dict[str, float]] = {}
    for cost in costs:
        point = cost.point(phase, context, batch_size)
        if point is not None:
            by_layout.setdefault(cost.layout.label, {})[cost.backend] = point.p50_ms
    choices = []
    for layout, by_backend in by_layout.items():
        best = min(by_backend, key=lambda backend: by_backend[backend])
        choices.append(KernelChoice(layout, by_backend.get(fixed), by_backend[best], best))
    return choices


def _session(cost: Cost) -> str | None:
    session: str | None = cost.environment.get("session")
    return session


def _obstacles(base: Cost, other: Cost) -> list[str]:
    """Why the two cannot be compared at all."""
    found = []
    for name in ("device", "dtype"):
        ours, theirs = getattr(base, name), getattr(other, name)
        if ours != theirs:
            found.append(f"{name}: {ours} against {theirs}")
    for name in ("threads", "version"):
        ours, theirs = base.protocol.get(name), other.protocol.get(name)
        if ours != theirs:
            found.append(f"protocol {name}: {ours} against {theirs}")
    if disturbed(base) or disturbed(other):
        found.append("the host was busy with other processes")
    return found


def _differences(a: Point, b: Point) -> list[str]:
    """What else differs between two points, without forbidding the comparison."""
    found = []
    if a.kernel != b.kernel:
        found.append(f"kernel: {a.kernel} against {b.kernel}")
    if a.kv_sharing != b.kv_sharing:
        found.append(f"KV sharing: {a.kv_sharing} against {b.kv_sharing}")
    return found


def _draws(n: int, seed: int = 0) -> NDArray[np.intp]:
    """Bootstrap draws of n places: (RESAMPLES, n)."""
    return np.random.default_rng(seed).integers(n, size=(RESAMPLES, n))


def _interval(statistics: NDArray[np.float64], level: float) -> tuple[float, float]:
    tail = 50 * (1 - level)
    low, high = np.percentile(statistics, [tail, 100 - tail])
    return float(low), float(high)
