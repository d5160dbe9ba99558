"""Run benchmarks and print their tables; with --write, keep them in docs/performance.md.

pip install -e .[bench]
python -m benchmarks                       every benchmark
python -m benchmarks attention decoding    some of them
python -m benchmarks --repeats 5           quicker and noisier
python -m benchmarks --write               replace the measured part of docs/performance.md
"""

import argparse
import datetime
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.table import markdown
from headcount.measure.host import HostWatch
from headcount.measure.lock import host_lock
from headcount.measure.protocol import device_name

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"

# Each benchmark: module, function, heading, and the share of --repeats that it takes.
BENCHMARKS: dict[str, list[tuple[str, str, str, float]]] = {
    "attention": [
        ("attention", "growth", "Causal attention alone, d_model 512, batch 1: ms by context", 1),
        ("attention", "sharing", "Shared KV heads at decode, attention alone", 2),
    ],
    "decoding": [
        ("decoding", "run", "One decode step, d_model 512, 4 layers, 16 heads, fp32", 1),
        ("decoding", "run_generate", "Greedy generation, ms a token", 1),
    ],
    "prefill": [("decoding", "run_prefill", "Prefill", 1)],
    "training": [("training", "run", "Training steps, fp32, eager", 1)],
    "precision": [("precision", "run", "bf16 against fp32 in training", 1)],
    "recipe": [("recipe", "run", "Everybody's fastest mode of training", 0.5)],
    "limits": [
        ("limits", "floors", "Decode against its bandwidth floor", 1),
        ("limits", "peaks", "Training against the peak of a matrix product", 1),
    ],
    "framework": [("framework", "run", "What the framework adds to a step", 1)],
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="|".join(BENCHMARKS), default=list(BENCHMARKS))
    parser.add_argument("--repeats", type=int, default=9, help="interleaved rounds (default 9)")
    parser.add_argument("--write", action="store_true", help="keep the tables in the docs")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"{', '.join(unknown)}: no such benchmark; valid: {', '.join(BENCHMARKS)}")
    torch.set_num_threads(1)  # what CPU time can be told of, and what the peers are compared at
    parts, watch = [], HostWatch()
    for name in arguments.names:
        for module, function, heading, share in BENCHMARKS[name]:
            call = getattr(importlib.import_module(f"benchmarks.{module}"), function)
            # Let go between two tables, so that a study on this host need not wait for them all.
            with host_lock(lambda: print("waiting for another measurement", flush=True)):
                table = _table(call, arguments.repeats, share)
            parts.append(f"### {heading}\n\n{table}")
            print(f"\n{parts[-1]}", flush=True)
            watch.lap()
    parts.insert(0, _conditions(watch.summary()))
    print(f"\n{parts[0]}")
    if arguments.write:
        _write("\n\n".join(parts))


def _table(call: Callable[[int], object], repeats: int, share: float) -> str:
    result = call(max(3, round(repeats * share)))
    return result if isinstance(result, str) else markdown(result)  # type: ignore[arg-type]


def _conditions(load: dict[str, float]) -> str:
    command = "python -m benchmarks " + " ".join(sys.argv[1:])
    return (
        f"`{command.strip()}`, {datetime.date.today()}, {device_name('cpu')}, "
        f"{os.cpu_count()} cores, one thread, CPU time, torch {torch.__version__}. Other "
        f"processes used {load['co_running_cores']:.2f} cores meanwhile "
        f"({load['co_running_cores_worst']:.2f} in the busiest part)."
    )


def _write(text: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
