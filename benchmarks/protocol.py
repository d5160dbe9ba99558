"""Whether the protocol keeps its promise: the order in which layouts are given changes no ranking, and
what is not told apart is a tie: `python -m benchmarks.protocol`."""

import itertools
import tempfile
from pathlib import Path

from headcount.config import Config
from headcount.hydra_app import compose
from headcount.measure.compare import compare
from headcount.measure.protocol import cost_id
from headcount.measure.wave import cost_wave
from headcount.study.records import Cost
from headcount.study.store import Study

CONTEXT, BATCH_SIZE = 4096, 8
N_KV_HEADS = (16, 4, 1)


def run(repeats: int = 15) -> str:
    """Decode of MHA, GQA-4 and MQA, measured in two sessions, in one order and in the other; and how
    each pair of them stands in both."""
    configs = [
        compose(
            [
                "model.d_model=512", "model.n_heads=16", f"model.n_kv_heads={n}",
                f"measure.contexts=[{CONTEXT}]", f"measure.batch_sizes=[{BATCH_SIZE}]",
                f"measure.repeats={repeats}",
            ]
        )
        for n in N_KV_HEADS
    ]  # fmt: skip
    there, back = _measured(configs), _measured(configs[::-1])[::-1]
    lines = [
        f"d_model 512, 2 layers, 16 heads, fp32, context {CONTEXT}, batch {BATCH_SIZE}; noise floors "
        f"{there[0].noise_floor:.1%} and {back[0].noise_floor:.1%}",
        "",
        "| layout | KV bytes a step | ms, in this order | ms, in the other |",
        "|---|--:|--:|--:|",
    ]
    for one, other in zip(there, back, strict=True):
        kv_bytes = one.kv_cache.bytes_per_token * CONTEXT * BATCH_SIZE
        medians = (f"{c.point('decode', CONTEXT, BATCH_SIZE).p50_ms:.3g}" for c in (one, other))  # type: ignore[union-attr]
        lines.append(f"| {one.layout.label} | {kv_bytes:,} | {' | '.join(medians)} |")
    lines += ["", "| pair | in this order (95%) | in the other (95%) |", "|---|---|---|"]
    for i, j in itertools.combinations(range(len(there)), 2):
        pair = f"{there[j].layout.label} against {there[i].layout.label}"
        lines.append(f"| {pair} | {_standing(there, i, j)} | {_standing(back, i, j)} |")
    return "\n".join(lines)


def _measured(configs: list[Config]) -> list[Cost]:
    with tempfile.TemporaryDirectory() as folder:
        costs = cost_wave(Study(Path(folder) / "study"), configs)
    return [costs[cost_id(config)] for config in configs]


def _standing(costs: list[Cost], i: int, j: int) -> str:
    found = compare(costs[i], costs[j], "decode", CONTEXT, BATCH_SIZE)
    assert found is not None
    return f"{found.ratio:.2f} ({found.low:.2f}–{found.high:.2f}) {found.verdict}"


if __name__ == "__main__":
    print(run())
