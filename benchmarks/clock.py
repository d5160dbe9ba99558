"""The benchmarks' clock: one thread's CPU time, interleaved.

On a quiet host CPU time is wall time; on a shared one, being put aside for a neighbour does not
count. What remains of neighbours is their use of caches and memory, which hits ours and theirs alike.
"""

import time
from collections.abc import Callable, Sequence

import torch

from headcount.measure import clock

CPU = torch.device("cpu")


def interleave(calls: Sequence[Callable[[], object]], repeats: int) -> list[list[float]]:
    """CPU milliseconds of each call, by call and round, after two calls of warm-up."""
    return clock.interleave(calls, CPU, repeats, warmup=2, now=time.process_time_ns)
