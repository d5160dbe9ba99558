"""The attention core alone: its growth with the context, and what shared KV heads save at decode."""

import itertools
from collections import defaultdict
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.clock import CPU, interleave
from benchmarks.table import Row, row
from headcount.measure.scaling import fitted_exponent
from headcount.model.backends import SDPA
from headcount.model.sight import Sight

D_MODEL = 512
KERNELS = {"flash": SDPBackend.FLASH_ATTENTION, "math": SDPBackend.MATH}
HEADS = (1, 8, 32)
SHORT = (128, 256, 512)
LONG = (1024, 2048, 4096)
"""The exponent is fitted over the long contexts, where launches no longer count: these are measured in
turns with one another, or a host that changes its speed would bend the line."""


def _attention(
    n_heads: int, n_kv_heads: int, batch_size: int, queries: int, context: int
) -> Callable[[], Tensor]:
    """Causal attention of `queries` tokens that end a context, at fixed d_model, as our model has it:
    q (B, n_heads, T, d_head) on k and v (B, n_kv_heads, S, d_head)."""
    d_head = D_MODEL // n_heads
    q = torch.randn(batch_size, n_heads, queries, d_head)
    k, v = (torch.randn(batch_size, n_kv_heads, context, d_head) for _ in range(2))
    sight, backend = Sight(True, queries, context, CPU), SDPA()
    return lambda: backend.attend(q, k, v, sight, d_head**-0.5, 0.0)


def _with_kernel(call: Callable[[], Tensor], kernel: SDPBackend) -> Callable[[], Tensor]:
    def under() -> Tensor:
        with sdpa_kernel(kernel):
            return call()

    return under


@torch.inference_mode()
def growth(repeats: int) -> str:
    """Milliseconds of causal attention over whole sequences, by heads and kernel, with the exponent
    fitted in the context: one kernel for all heads, and the best for each."""
    by_arm: dict[tuple[int, str], list[float]] = defaultdict(list)
    for contexts in (*((c,) for c in SHORT), LONG):
        cells = list(itertools.product(contexts, HEADS, KERNELS))
        calls = [
            _with_kernel(_attention(n_heads, n_heads, 1, context, context), KERNELS[kernel])
            for context, n_heads, kernel in cells
        ]
        for (_, n_heads, kernel), samples in zip(cells, interleave(calls, repeats), strict=True):
            by_arm[n_heads, kernel].append(float(np.median(samples)))
    header = " | ".join(f"T={c}" for c in (*SHORT, *LONG))
    lines = [
        f"| n_heads | kernel | {header} | exponent | best at T={LONG[-1]} |",
        "|---|---|" + "--:|" * (len(SHORT) + len(LONG) + 1) + "---|",
    ]
    for (n_heads, kernel), ms in by_arm.items():
        exponent = fitted_exponent(LONG, ms[-len(LONG) :])
        best = min((by_arm[n_heads, name][-1], name) for name in KERNELS)[1]
        medians = " | ".join(f"{t:.3g}" for t in ms)
        lines.append(f"| {n_heads} | {kernel} | {medians} | {exponent:.2f} | {best} |")
    return "\n".join(lines)


@torch.inference_mode()
def sharing(repeats: int, batch_size: int = 8, context: int = 4096, n_heads: int = 16) -> list[Row]:
    """One decode step of attention with shared KV heads against MHA; MHA's bytes read over theirs
    stand beside as the ratio that bandwidth alone would give."""
    layouts = {"MHA": n_heads, "GQA-4": 4, "MQA": 1}
    calls = [_attention(n_heads, kv, batch_size, 1, context) for kv in layouts.values()]
    samples = dict(zip(layouts, interleave(calls, repeats), strict=True))
    place = f"n_heads {n_heads}, batch {batch_size}, context {context}"
    # MQA against MHA is asked to be 2.4 times as fast.
    targets = {"GQA-4": None, "MQA": 2.4}
    return [
        row(
            f"attention decode, {layout}, {place}",
            f"MHA, which reads {n_heads // layouts[layout]} times the bytes",
            samples[layout],
            samples["MHA"],
            target,
        )
        for layout, target in targets.items()
    ]
