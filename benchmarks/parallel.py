"""Eight small runs in several ways: what a second core is worth, as a worker or as a thread.

    python -m benchmarks.parallel

Each study trains the same runs from nothing, in worker processes, in turns with the others. No cost is
measured: the cost wave has the host to itself and is over before runs go side by side. Ends with one
JSON line of medians in seconds.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time

RUNS = (
    "seed=0,1,2,3", "model.n_heads=2,8", "trainer.max_steps=150", "optim.warmup_steps=20",
    "logger=none", "hydra.sweeper.waves=[training]",
)  # fmt: skip

WAYS = {
    f"{precision}, {workers} workers, {threads} threads each": (
        f"trainer.precision={precision}",
        f"hydra.launcher.n_workers={workers}",
        f"trainer.threads={threads}",
    )
    for precision, workers, threads in (
        ("32-true", 1, 1),
        ("32-true", 2, 1),
        ("bf16-mixed", 2, 1),
        ("bf16-mixed", 1, 2),
    )
}

TURNS = 2


def seconds(way: tuple[str, ...]) -> float:
    """The whole command, from start to report."""
    with tempfile.TemporaryDirectory() as results:
        command = [
            sys.executable, "-m", "headcount.cli", "train", "-m", *RUNS, *way,
            f"paths.results={results}",
        ]  # fmt: skip
        started = time.monotonic()
        subprocess.run(command, check=True, capture_output=True)
        return time.monotonic() - started


def main() -> None:
    times: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(TURNS):
        for name, way in WAYS.items():
            times[name].append(seconds(way))
    medians = {name: statistics.median(found) for name, found in times.items()}
    for name, found in times.items():
        print(f"{name}: {medians[name]:.1f} s ({min(found):.1f} to {max(found):.1f})")
    print(json.dumps(medians))


if __name__ == "__main__":
    main()
