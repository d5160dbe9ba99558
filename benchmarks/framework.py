"""What Lightning, the journal, the callbacks and the schedule add to a training step."""

import tempfile
import time
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.table import Row, row
from headcount.config import Config
from headcount.hydra_app import compose
from headcount.study.run import execute
from headcount.tasks import build_task
from headcount.training.module import HeadcountModule

FEW = 60
"""Steps of the shorter of two runs; set-up and the one validation cancel in the difference of their
times."""

SIZES: dict[str, tuple[int, float | None, list[str]]] = {
    "short": (660, None, ["task.batch_size=4", "task.seq_len=32"]),
    "default": (180, 1 / 1.05, []),
}
"""By name: the longer run's steps, the target and what to override."""


def _config(steps: int, seed: int, results: str, *overrides: str) -> Config:
    """The default run, validated once at its end, with no tracker."""
    fixed = [
        f"trainer.max_steps={steps}",
        f"trainer.val_every_steps={steps}",
        "optim.warmup_steps=10",
        "logger=none",
        f"paths.results={results}",
        f"seed={seed}",
    ]
    return compose([*fixed, *overrides])


def _whole(config: Config) -> None:
    """A run as `headcount train` makes it, its record and checkpoints included."""
    execute(config)


def _bare(config: Config) -> None:
    """A plain loop that does the same arithmetic on the same batches, and the same evaluation."""
    torch.set_num_threads(config.trainer.threads)
    task = build_task(config)
    module = HeadcountModule(config, task)
    built = module.configure_optimizers()
    optimiser, schedule = built["optimizer"], built["lr_scheduler"]["scheduler"]
    for step in range(config.trainer.max_steps):
        batch = task.train_batch(config.seed, step)
        optimiser.zero_grad(set_to_none=True)
        losses = task.losses(module.model(batch.inputs), batch)
        (losses.sum() / batch.n_scored).backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), config.optim.grad_clip)
        optimiser.step()
        schedule.step()


def _step_ms(
    run: Callable[[Config], None], many: int, seed: int, results: str, overrides: list[str]
) -> float:
    """CPU milliseconds a step, from the difference of a long and a short run."""
    spent = []
    for steps in (FEW, many):
        config = _config(steps, seed, results, *overrides)
        started = time.process_time()
        run(config)
        spent.append(time.process_time() - started)
    return 1e3 * (spent[1] - spent[0]) / (many - FEW)


def run(repeats: int) -> list[Row]:
    """Whole runs and bare loops in alternation, at a short step and at the default one."""
    rows = []
    for name, (many, target, overrides) in SIZES.items():
        with tempfile.TemporaryDirectory() as results:
            times = [
                [_step_ms(kind, many, seed, results, overrides) for kind in (_whole, _bare)]
                for seed in range(repeats)
            ]
        whole, bare = (list(samples) for samples in zip(*times, strict=True))
        added = float(np.median(np.subtract(whole, bare)))
        what = f"whole training step, {name} (adds {added:.2f} ms)"
        rows.append(row(what, "a bare loop", whole, bare, target))
    return rows
