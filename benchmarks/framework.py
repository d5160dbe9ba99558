"""What Lightning, the journal, the callbacks and the schedule add to a training step."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np
import torch

from benchmarks.table import Row, row
from headcount.config import Config
from headcount.hydra_app import compose
from headcount.study.run import execute
from headcount.tasks import build_task
from headcount.training.module import HeadcountModule, Part, StepBatches

BLOCK = 20
"""Steps of a sample: the journal is written every ten steps, a checkpoint every few seconds."""

SIZES: dict[str, tuple[int, float | None, list[str]]] = {
    "short": (5, None, ["task.batch_size=4", "task.seq_len=32"]),
    "default": (2, 1 / 1.05, []),
}
"""By name: blocks a repeat, the target and what to override."""


def _bare_step(config: Config) -> Callable[[int], None]:
    """A step of a plain loop that does the same arithmetic on the same batches."""
    task = build_task(config)
    module = HeadcountModule(config, task)
    built = module.configure_optimizers()
    optimiser, schedule = built["optimizer"], built["lr_scheduler"]["scheduler"]

    def step(number: int) -> None:
        batch = task.train_batch(config.seed, number)
        optimiser.zero_grad(set_to_none=True)
        losses = task.losses(module.model(batch.inputs), batch)
        (losses.sum() / batch.n_scored).backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), config.optim.grad_clip)
        optimiser.step()
        schedule.step()

    return step


@contextmanager
def _in_turns(bare: Callable[[int], None]) -> Iterator[list[tuple[float, float]]]:
    """Within it, each step of a run is followed by a bare one; yields CPU milliseconds of both. All
    that a run does from one batch to the next is its step, its callbacks included; checkpoints fall into
    few blocks, which a median leaves out, and are held to a fiftieth of the time."""
    samples: list[tuple[float, float]] = []
    batches = StepBatches.__iter__

    def turns(self: StepBatches) -> Iterator[Part]:
        began = time.process_time()
        for number, part in enumerate(batches(self)):
            yield part
            whole = time.process_time()
            bare(number)
            end = time.process_time()
            samples.append((1e3 * (whole - began), 1e3 * (end - whole)))
            began = end

    with mock.patch.object(StepBatches, "__iter__", turns):
        yield samples


def run(repeats: int) -> list[Row]:
    """A run as `headcount train` makes it, step by step in turns with a bare loop: at a short step and
    at the default one."""
    rows = []
    for name, (blocks, target, overrides) in SIZES.items():
        steps = BLOCK * (1 + blocks * repeats)  # the first block warms up
        with tempfile.TemporaryDirectory() as results:
            config = compose(
                [
                    f"trainer.max_steps={steps}", f"trainer.val_every_steps={steps}",
                    "optim.warmup_steps=10", "logger=none", f"paths.results={results}", *overrides,
                ]
            )  # fmt: skip
            with _in_turns(_bare_step(config)) as samples:
                execute(config)
        by_block = np.array(samples[BLOCK : len(samples) // BLOCK * BLOCK])
        whole, bare = by_block.reshape(-1, BLOCK, 2).mean(axis=1).T.tolist()
        added = float(np.median(np.subtract(whole, bare)))
        what = f"whole training step, {name} (adds {added:.2f} ms)"
        rows.append(row(what, "a bare loop", whole, bare, target))
    return rows
