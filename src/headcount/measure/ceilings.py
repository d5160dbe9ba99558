"""What the device can do at best, measured in the session: a matrix product, a copy and a read."""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from headcount.measure.clock import timed_ms
from headcount.measure.inputs import DTYPES

MATMUL_SIZE = {"cpu": 1024, "cuda": 8192, "mps": 4096}
STREAM_BYTES = {
    "cpu": (1 << 20, 1 << 23, 1 << 26, 1 << 28),
    "cuda": (1 << 23, 1 << 26, 1 << 30),
    "mps": (1 << 23, 1 << 26, 1 << 30),
}
"""Working sets, from what a core's cache holds to what none does."""
TOTAL_BYTES = 1 << 27
"""Small working sets are streamed more often, until as much has been moved."""
REPEATS = 5


@torch.inference_mode()
def measure_ceilings(device: torch.device, dtypes: Iterable[str]) -> dict[str, Any]:
    """Peak FLOP/s of a square matrix product by dtype, and peak bytes/s by working set: the better
    of a copy (bytes read and written) and a sum (bytes read). The fastest of
    several calls, with the threads that the layouts are timed with."""
    return {
        "matmul_flops_per_s": {dtype: _matmul(device, dtype) for dtype in sorted(set(dtypes))},
        "bytes_per_s": {str(size): _stream(device, size) for size in STREAM_BYTES[device.type]},
    }


def _matmul(device: torch.device, dtype: str) -> float:
    """FLOP/s of a square product."""
    n = MATMUL_SIZE[device.type]
    a, b = (torch.randn(n, n, device=device).to(DTYPES[dtype]) for _ in range(2))
    return 2e3 * n**3 / _fastest_ms(lambda: a @ b, device)


def _stream(device: torch.device, size: int) -> float:
    """Bytes/s over a working set of `size` bytes."""
    data = torch.zeros(size // 4, device=device)
    source, target = data.chunk(2)
    repeats = max(REPEATS, TOTAL_BYTES // size)
    copy = _fastest_ms(lambda: target.copy_(source), device, repeats)
    read = _fastest_ms(data.sum, device, repeats)
    return 1e3 * size / min(copy, read)


def _fastest_ms(call: Callable[[], object], device: torch.device, repeats: int = REPEATS) -> float:
    call()
    return min(timed_ms(call, device) for _ in range(repeats))
