"""How near the machine's limits we come: the bandwidth floor of a decode step, the peak of a matrix
product in training. The limit is measured in turns with what it limits."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks import ours
from benchmarks.clock import interleave
from benchmarks.shapes import DECODE_LAYOUTS, TRAINING, decode_shape, shape
from benchmarks.table import Row, row
from benchmarks.training import training_step
from headcount.measure.ceilings import MATMUL_SIZE
from headcount.measure.inputs import DTYPES
from headcount.measure.roofline import decode_work

FLOOR_SHARE = 1 / 3
"""A step may take three times its floor."""
PEAK_SHARES = {"fp32": 0.65, "bf16": 0.5}


@torch.inference_mode()
def floors(repeats: int) -> list[Row]:
    """A decode step, batch 1, against a plain read of as many bytes as it has to read."""
    rows = []
    for context in (512, 4096):
        for layout, n_kv_heads in DECODE_LAYOUTS.items():
            at = decode_shape(n_kv_heads)
            n_bytes = decode_work(at, context, 1, "fp32").bytes
            calls = [ours.decode_step(at, 1, context, torch.float32), _read(n_bytes)]
            step, read = interleave(calls, repeats)
            what = f"decode, {layout}, batch 1, context {context}"
            against = f"reading its {n_bytes / 1e6:.0f} MB"
            rows.append(row(what, against, step, read, FLOOR_SHARE))
    return rows


def _read(n_bytes: int) -> Callable[[], Tensor]:
    data = torch.zeros(n_bytes // 4)
    return data.sum


def peaks(repeats: int) -> list[Row]:
    """Training steps of the medium shape against the same FLOPs at the speed of one square product;
    every score of the T × T square is counted."""
    size, rows = TRAINING["medium"], []
    at = shape(size["d_model"], size["n_layers"], size["n_heads"])
    batch = (size["batch_size"], size["seq_len"])
    n = MATMUL_SIZE["cpu"]
    for dtype, target in PEAK_SHARES.items():
        a, b = (torch.randn(n, n).to(DTYPES[dtype]) for _ in range(2))
        calls: list[Callable[[], object]] = [
            training_step(ours.trainable(at), *batch, dtype),
            partial(torch.matmul, a, b),
        ]
        step, product = interleave(calls, repeats)
        products = batch[0] * at.train_flops(batch[1]) / (2 * n**3)
        at_peak = [ms * products for ms in product]
        against = f"its FLOPs in {dtype} products of {n} × {n}"
        rows.append(row(f"training step, medium, llama, {dtype}", against, step, at_peak, target))
    return rows
