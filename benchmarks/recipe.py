"""Everybody's fastest way to train: ours against each peer's own, one thread."""

import itertools
from typing import Any

import torch
from torch import nn

from benchmarks import ours, peers
from benchmarks.clock import interleave
from benchmarks.shapes import TRAINING, shape
from benchmarks.table import Row, row
from benchmarks.training import training_step

TARGETS = {"small": 1.3, "medium": 1.4}
MODES = tuple(itertools.product(("fp32", "bf16"), ("eager", "compiled")))


def run(repeats: int) -> list[Row]:
    """Our step as `trainer=fast` has it (bf16 autocast, each block compiled) against the fastest mode
    of each peer at the same shape: fp32 or bf16 autocast, eager or compiled as a whole."""
    rows = []
    for name, size in TRAINING.items():
        batch = (size["batch_size"], size["seq_len"])
        dims = (size["d_model"], size["n_layers"], size["n_heads"])
        for family, makers in (("gpt", peers.GPT_PEERS), ("llama", peers.LLAMA_PEERS)):
            at = shape(*dims, family=family)  # type: ignore[arg-type]
            steps = {"ours": training_step(_compiled(ours.trainable(at)), *batch, "bf16")}
            for (peer, make), (dtype, how) in itertools.product(makers.items(), MODES):
                model: Any = torch.compile(make(at)) if how == "compiled" else make(at)
                steps[f"{peer}, {dtype} {how}"] = training_step(model, *batch, dtype)
            samples = dict(zip(steps, interleave(list(steps.values()), repeats), strict=True))
            mine = samples.pop("ours")
            for peer in makers:
                own = {mode: s for mode, s in samples.items() if mode.startswith(f"{peer}, ")}
                fastest = min(own, key=lambda mode: sorted(own[mode])[len(own[mode]) // 2])
                what = f"training step, {name}, {family}, bf16 and compiled blocks"
                rows.append(row(what, fastest, mine, own[fastest], TARGETS[name]))
            torch.compiler.reset()
    return rows


def _compiled(model: nn.Module) -> nn.Module:
    for block in model.blocks:  # type: ignore[union-attr]
        block.compile(dynamic=False)
    return model
