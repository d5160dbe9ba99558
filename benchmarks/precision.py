"""bf16 against fp32 in training, for every number of heads."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import ours
from benchmarks.clock import interleave
from benchmarks.shapes import TRAINING, shape
from benchmarks.table import Row, row


def _step(model: nn.Module, batch_size: int, seq_len: int, mixed: bool) -> Callable[[], None]:
    """One training step, under bf16 autocast if `mixed`."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(256, (batch_size, seq_len + 1))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].flatten()

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, mixed):
            loss = F.cross_entropy(model(inputs).flatten(0, 1), targets)
        loss.backward()
        optimiser.step()

    return step


def run(repeats: int) -> list[Row]:
    """Our step under bf16 autocast against our own in fp32, RoPE, n_heads from 1 to d_model/4."""
    rows = []
    for name, size in TRAINING.items():
        n_heads = 1
        while n_heads <= size["d_model"] // 4:
            s = shape(size["d_model"], size["n_layers"], n_heads)
            batch = (size["batch_size"], size["seq_len"])
            steps = [_step(ours.trainable(s), *batch, mixed) for mixed in (True, False)]
            mixed, full = interleave(steps, repeats)
            what = f"training step in bf16, {name}, n_heads {n_heads}"
            rows.append(row(what, "our own in fp32", mixed, full, 1.0))
            n_heads *= 4
    return rows
