"""What the device can do at best, measured in the session: a matrix product, a copy and a read."""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from headcount.measure.clock import timed_ms
from headcount.measure.memory import DTYPES

MATMUL_SIZE = {"cpu": 1024, "cuda": 8192, "mps": 4096}
STREAM_BYTES = {
    "cpu": (1 << 20, 1 << 23, 1 << 26, 1 << 28),
    "cuda": (1 << 23, 1 << 26, 1 << 30),
    "mps": (1 << 23, 1 << 26, 1 << 30),
}
"""Working sets, from what a core's cache holds to what none does."""
SAMPLE_BYTES = 1 << 26
"""Small working sets are streamed until a sample has moved as much: launches must not count."""
REPEATS = 5


@torch.inference_mode()
def measure_ceilings(device: torch.device, dtypes: Iterable[str]) -> dict[str, Any]:
    """Peak FLOP/s of a square matrix product by dtype, and peak bytes/s by working set: the better
    of a copy (bytes read and written) and a sum (bytes read). The fastest of REPEATS, with the
    threads that the layouts are timed with."""
    n = MATMUL_SIZE[device.type]
    products = {}
    for dtype in sorted(set(dtypes)):
        a, b = (torch.randn(n, n, device=device).to(DTYPES[dtype]) for _ in range(2))
        products[dtype] = 2e3 * n**3 / _fastest_ms(lambda a=a, b=b: a @ b, device)
    streams = {}
    for size in STREAM_BYTES[device.type]:
        data = torch.zeros(size // 4, device=device)
        source, target = data.chunk(2)
        times = max(1, SAMPLE_BYTES // size)
        copy = _fastest_ms(_repeated(lambda t=target, s=source: t.copy_(s), times), device)
        read = _fastest_ms(_repeated(data.sum, times), device)
        streams[str(size)] = 1e3 * size * times / min(copy, read)
    return {"matmul_flops_per_s": products, "bytes_per_s": streams}


def _repeated(call: Callable[[], object], times: int) -> Callable[[], None]:
    def calls() -> None:
        for _ in range(times):
            call()

    return calls


def _fastest_ms(call: Callable[[], object], device: torch.device) -> float:
    call()
    return min(timed_ms(call, device) for _ in range(REPEATS))
