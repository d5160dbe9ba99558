"""Timing several callables against one another: interleaved, warmed up, synchronised, paired.

The ranking must not follow the order of measuring: identical code differs by 7 to 22% between
first and last when each is timed in one go. So every round calls each of them once, in an order of
its own, and sample i of one stands beside sample i of another.
"""

import gc
import math
import random
import time
from collections.abc import Callable, Sequence

import torch

from headcount.measure.protocol import MIN_POINT_MS, MIN_WARMUP_MS

MAX_ROUNDS = 1000

Clock = Callable[[], int]
"""Nanoseconds: wall time, or CPU time where a single thread is to be timed on a shared host."""

RESTORE_BELOW_MS = 5.0
"""Calls shorter than this are preceded by an untimed one that brings the caches back to the state
of a model that runs on its own; for longer ones, reloading them is lost in the noise."""


def interleave(
    calls: Sequence[Callable[[], object]],
    device: torch.device,
    repeats: int,
    warmup: int,
    seed: int = 0,
    min_ms: float = MIN_POINT_MS,
    min_warmup_ms: float = MIN_WARMUP_MS,
    now: Clock = time.perf_counter_ns,
) -> list[list[float]]:
    """Milliseconds of each call, by call and round: at least `repeats` rounds, and as many
    more as the fastest call needs to be timed for `min_ms` (at most MAX_ROUNDS).

    Each call is warmed up `warmup` times and for `min_warmup_ms` first. A sample starts and ends
    with an idle device. Python's garbage collector stands still inside the window.
    """
    fastest = min(_warm(call, device, warmup, min_warmup_ms, now) for call in calls)
    rounds = max(repeats, min(MAX_ROUNDS, math.ceil(min_ms / fastest)))
    shuffle = random.Random(seed)
    order = list(range(len(calls)))
    samples: list[list[float]] = [[] for _ in calls]
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            shuffle.shuffle(order)
            for i in order:
                if fastest < RESTORE_BELOW_MS:
                    calls[i]()
                samples[i].append(timed_ms(calls[i], device, now))
    finally:
        gc.enable()
    return samples


def timed_ms(
    call: Callable[[], object], device: torch.device, now: Clock = time.perf_counter_ns
) -> float:
    """Milliseconds of one call, between two moments at which the device is idle."""
    synchronise(device)
    start = now()
    call()
    synchronise(device)
    return (now() - start) / 1e6


def synchronise(device: torch.device) -> None:
    """Wait until the device has done what it was given; the CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _warm(
    call: Callable[[], object], device: torch.device, count: int, min_ms: float, now: Clock
) -> float:
    """Call `count` times and for `min_ms`; the fastest call's milliseconds."""
    spent, calls, fastest = 0.0, 0, math.inf
    while calls < count or spent < min_ms:
        sample = timed_ms(call, device, now)
        spent, calls, fastest = spent + sample, calls + 1, min(fastest, sample)
    return max(fastest, 1e-6)
