"""What logging to W&B costs a training step, against no logger: `python -m benchmarks.logging_overhead`.

The same run is trained with and without, in turns, each time on another seed, and not scored. Samples are a run's
whole time in `Trainer.fit`, a step: logging happens beside the steps, when a checkpoint is saved. Two
clocks: the wall's, which other work on the machine disturbs, and the processor time of the training
process together with W&B's own, which it does not.
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import psutil
import pytorch_lightning as pl

from benchmarks.table import Row, markdown, row
from headcount.hydra_app import compose
from headcount.study.run import execute
from headcount.training.evaluation import Evaluation

STEPS = 200
TARGET = 0.97
"""At least so many times as fast as without: 3% of step time."""


@contextmanager
def timed_fit(samples: list[tuple[float, float]]) -> Iterator[None]:
    """Note wall and processor time of each training within, in ms a step."""
    original = pl.Trainer.fit

    def fit(self: pl.Trainer, *args: Any, **kwargs: Any) -> None:
        wall, processor = time.perf_counter(), processor_seconds()
        original(self, *args, **kwargs)
        wall, processor = time.perf_counter() - wall, processor_seconds() - processor
        samples.append((1e3 * wall / STEPS, 1e3 * processor / STEPS))

    unscored = mock.patch(
        "headcount.study.run.evaluate", return_value=Evaluation(0.0, None, None, {})
    )
    with mock.patch.object(pl.Trainer, "fit", fit), unscored:
        yield


def processor_seconds() -> float:
    """Of this process and its children at work, W&B's among them."""
    own = psutil.Process()
    times = [p.cpu_times() for p in (own, *own.children(recursive=True))]
    return sum(t.user + t.system for t in times)


def run(repeats: int) -> list[Row]:
    """Offline logging at the default interval, and at every step, against none."""
    variants = {
        "none": ["logger=none"],
        "every 10 steps (default)": ["logger=wandb"],
        "every step": ["logger=wandb", "logger.every_steps=1"],
    }
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
    with tempfile.TemporaryDirectory() as results:
        for seed in range(repeats + 1):
            for number, (name, overrides) in enumerate(variants.items()):
                base = [f"paths.results={results}", f"study=s{number}", f"seed={seed}"]
                config = compose([*base, f"trainer.max_steps={STEPS}", *overrides])
                with timed_fit(samples[name]):
                    record = execute(config)
                assert record is not None
                assert record.status == "completed", record.error
    rows = []
    for name in list(variants)[1:]:
        target = TARGET if "default" in name else None
        for clock, title in enumerate(("wall", "processor")):
            # The first round warms up what is started once a process.
            ours, none = ([s[clock] for s in samples[n][1:]] for n in (name, "none"))
            rows.append(row(f"step with W&B {name}, {title} time", "no logger", ours, none, target))
    return rows


if __name__ == "__main__":
    print(markdown(run(int(sys.argv[1]) if len(sys.argv) > 1 else 15)))
