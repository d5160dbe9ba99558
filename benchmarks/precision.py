"""bf16 against fp32 in training, for every number of heads."""

from benchmarks import ours
from benchmarks.clock import interleave
from benchmarks.shapes import TRAINING, shape
from benchmarks.table import Row, row
from benchmarks.training import training_step

# At the shape that peers are compared at; elsewhere bf16 must only never be slower.
SMALL_TARGET = 1.35


def run(repeats: int) -> list[Row]:
    """Our step under bf16 autocast against our own in fp32, RoPE, n_heads from 1 to d_model/4."""
    rows = []
    for name, size in TRAINING.items():
        n_heads = 1
        while n_heads <= size["d_model"] // 4:
            s = shape(size["d_model"], size["n_layers"], n_heads)
            batch = (size["batch_size"], size["seq_len"])
            steps = [training_step(ours.trainable(s), *batch, dtype) for dtype in ("bf16", "fp32")]
            mixed, full = interleave(steps, repeats)
            what = f"training step in bf16, {name}, n_heads {n_heads}"
            target = SMALL_TARGET if (name, n_heads) == ("small", 8) else 1.0
            rows.append(row(what, "our own in fp32", mixed, full, target))
            n_heads *= 2
    return rows
