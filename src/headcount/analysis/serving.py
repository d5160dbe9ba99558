"""What each layout costs to serve at one context, batch and device, from the study's cost records."""

from dataclasses import dataclass
from math import nan

import numpy as np

from headcount.analysis.arms import Arm
from headcount.analysis.statistics import Array
from headcount.analysis.words import listed
from headcount.errors import RequestError
from headcount.study.records import Cost, Point


@dataclass(frozen=True)
class Serving:
    """Costs of some arms, all from one device, dtype, context and batch; arrays are (arms,), with
    NaN where an arm was not measured there."""

    timings: list[tuple[Cost, Point] | None]
    """For each arm its cost record and the decode point read from it."""
    latency: Array
    """Median milliseconds a decode step of the whole batch."""
    kv: Array
    """Bytes of the KV cache of the context and batch; they need no timing there."""
    memory: Array
    """Peak bytes while decoding: as measured, with this context's and batch's cache in it."""
    floor: float
    """Relative difference that one layout measured twice showed; smaller ones mean nothing."""
    at: str
    """Context, batch, dtype and device, in words."""
    missing: str
    """Why nothing could be read at the context and batch asked for; empty otherwise."""


def serving(
    arms: list[Arm],
    context: int | None = None,
    batch_size: int | None = None,
    hardware: str | None = None,
) -> Serving:
    """Read the costs of the arms. None takes the protocol's headline, and any device.

    Decoding only slows down with context, so a context that was not measured is read at the next
    one that was, which bounds it from above. Of several devices or dtypes the one that covers most
    arms is read. RequestError for hardware that no record names.
    """
    costs = _one_device(arms, hardware)
    known = [c for group in costs for c in group]
    if not known:
        return _nothing(len(arms), "", "")
    protocol = known[0].protocol
    batch = batch_size or protocol["headline_batch_size"]
    asked = context or protocol["headline_context"]
    where = f"{known[0].dtype}, {known[0].device}"
    cells = sorted(
        {(p.context, p.batch_size) for c in known for p in c.points if p.phase == "decode"}
    )
    read = next((c for c, b in cells if b == batch and c >= asked), None)
    per_token = [max((c.kv_cache.bytes_per_token for c in g), default=nan) for g in costs]
    kv = np.array(per_token) * asked * batch
    if read is None:
        measured = listed([f"{c:,} × {b}" for c, b in cells], most=6)
        return _nothing(
            len(arms),
            f"context {asked:,}, batch {batch}, {where}",
            f"decode was not measured at context {asked:,} × batch {batch}, nor beyond; measured: "
            f"{measured}",
            kv,
        )
    timings = [_newest(group, read, batch) for group in costs]
    beyond = f" (read at {read:,}, the next one measured)" if read != asked else ""
    return Serving(
        timings=timings,
        latency=np.array([t[1].p50_ms if t else nan for t in timings]),
        kv=kv,
        memory=kv + np.array([_without_cache(t[0]) if t else nan for t in timings]),
        floor=max([t[0].noise_floor or 0.0 for t in timings if t], default=0.0),
        at=f"context {asked:,}{beyond}, batch {batch}, {where}",
        missing="",
    )


def _one_device(arms: list[Arm], hardware: str | None) -> list[list[Cost]]:
    """Each arm's cost records of the device and dtype that cover most arms."""
    costs = [list(a.costs) for a in arms]
    devices = {c.device for group in costs for c in group}
    if hardware is not None:
        fitting = {d for d in devices if hardware.lower() in d.lower()}
        if not fitting:
            raise RequestError(
                f"hardware={hardware}: the study has no cost record from there; valid: "
                f"{listed(sorted(devices)) or 'none measured yet'}"
            )
        costs = [[c for c in group if c.device in fitting] for group in costs]
    covered: dict[tuple[str, str], int] = {}
    for group in costs:
        for setup in {(c.device, c.dtype) for c in group}:
            covered[setup] = covered.get(setup, 0) + 1
    if not covered:
        return costs
    # Ties go to the set-up that the report shows.
    shown = {(a.cost.device, a.cost.dtype) for a in arms if a.cost}
    best = max(covered, key=lambda setup: (covered[setup], setup in shown))
    return [[c for c in group if (c.device, c.dtype) == best] for group in costs]


def _newest(costs: list[Cost], context: int, batch: int) -> tuple[Cost, Point] | None:
    found = [(c, p) for c in costs if (p := c.point("decode", context, batch))]
    return max(found, key=lambda pair: pair[0].measured, default=None)


def _without_cache(cost: Cost) -> float:
    """Peak bytes while decoding, less the cache that was allocated then."""
    rest = cost.memory.decode_peak_bytes - cost.kv_cache.allocated_bytes
    return float(max(rest, cost.memory.weights_bytes))


def _nothing(n: int, at: str, missing: str, kv: Array | None = None) -> Serving:
    unknown = np.full(n, nan)
    return Serving([None] * n, unknown, unknown if kv is None else kv, unknown, 0.0, at, missing)
