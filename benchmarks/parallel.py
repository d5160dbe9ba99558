"""Eight small runs, one worker after another and side by side: what a second core is worth.

    python -m benchmarks.parallel

Both studies train the same runs from nothing, in worker processes of one thread each, in turns. No
cost is measured: the cost wave has the host to itself and is over before runs go side by side.
Ends with one JSON line.
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

TURNS = 3


def seconds(n_workers: int) -> float:
    """The whole command, from start to report."""
    with tempfile.TemporaryDirectory() as results:
        command = [
            sys.executable, "-m", "headcount.cli", "train", "-m", *RUNS,
            f"hydra.launcher.n_workers={n_workers}", f"paths.results={results}",
        ]  # fmt: skip
        started = time.monotonic()
        subprocess.run(command, check=True, capture_output=True)
        return time.monotonic() - started


def main() -> None:
    times: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(TURNS):
        for n_workers in times:
            times[n_workers].append(seconds(n_workers))
    serial, parallel = (statistics.median(times[n]) for n in (1, 2))
    print(f"8 runs: {serial:.1f} s in one worker, {parallel:.1f} s in two")
    print(json.dumps({"serial_s": serial, "parallel_s": parallel, "ratio": parallel / serial}))


if __name__ == "__main__":
    main()
