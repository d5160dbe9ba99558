"""What happens around a training step: journal, validation, checkpoints, heartbeat, stopping.

One callback, because the order matters: a step's loss is noted, then validation runs, then the
checkpoint that contains both is saved. A run killed anywhere and taken up again therefore does the
same things in the same order as one that was never killed.
"""

import math
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.io import TorchCheckpointIO

from headcount.study.store import TEMPORARY
from headcount.training.evaluation import evaluate
from headcount.training.journal import Journal
from headcount.training.module import HeadcountModule, Part

CHECK_EVERY = 10
"""Steps between looks at the losses: a look waits for the device."""

DIVERGED_AT = 10.0
"""A loss above this many times the first step's loss counts as diverged."""

STOPPING = (signal.SIGINT, signal.SIGTERM)

CHECKPOINT_SHARE = 0.02
CHECKPOINT_SECONDS = 1.0
"""A checkpoint is due after a second, or when saving takes less than this share of the time."""


class DivergedError(Exception):
    """The loss is not finite, or far above where it began."""


class InterruptedRunError(Exception):
    """SIGINT or SIGTERM came; the run stands saved at its last step."""


class AtomicCheckpointIO(TorchCheckpointIO):
    """Saves beside the target and renames, so that a kill never leaves half a checkpoint."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
        try:
            torch.save(checkpoint, temporary)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


class RunProgress(pl.Callback):
    """Keeps a run's state: losses, best validation, time. `before_saving` may raise where the run's
    folder is no longer ours to write to; `on_saved` hears of each checkpoint."""

    def __init__(
        self,
        folder: Path,
        val_every_steps: int,
        before_saving: Callable[[], None],
        on_saved: Callable[["RunProgress"], None],
    ) -> None:
        self.folder = folder
        self.last = folder / "checkpoints" / "last.ckpt"
        self.best = folder / "checkpoints" / "best.ckpt"
        self.val_every_steps = val_every_steps
        self.before_saving = before_saving
        self.on_saved = on_saved
        self.state: dict[str, Any] = {
            "step": 0,
            "tokens": 0,
            "seconds": 0.0,
            "first_loss": None,
            "val_loss": None,
            "val_best_step": None,
            "val_loss_last": None,
        }
        self._losses: list[tuple[int, int, float, torch.Tensor]] = []
        self._parts: torch.Tensor | float = 0.0
        self._signal: int | None = None
        self._previous: dict[int, Any] = {}

    # -- Lightning's hooks, in the order they come -------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return dict(self.state)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.state.update(state_dict)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        # Before Lightning puts its own in, which hold on to the trainer and with it to the model.
        self._previous = {number: signal.getsignal(number) for number in STOPPING}

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.is_global_zero:  # of several ranks the first alone writes
            self.journal = Journal(self.folder / "metrics.jsonl", self.state["step"])
        for number in STOPPING:
            signal.signal(number, self._on_signal)
        self._saved_at, self._save_seconds = time.monotonic(), 0.0
        self._started = time.perf_counter()

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        self._lr = optimizer.param_groups[0][
            "lr"
        ]  # as this step uses it; the scheduler moves later

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Part,
        batch_idx: int,
    ) -> None:
        assert isinstance(pl_module, HeadcountModule)
        self._parts = self._parts + outputs["loss"].detach()
        self.state["tokens"] += batch.batch.inputs.shape[:2].numel() * trainer.world_size
        if trainer.global_step == self.state["step"]:
            return  # a part of an accumulated step
        step = self.state["step"] = trainer.global_step
        self._losses.append((step, self.state["tokens"], self._lr, torch.as_tensor(self._parts)))
        self._parts = 0.0
        last = step == trainer.max_steps
        validate = last or step % self.val_every_steps == 0
        # Ranks must agree on what they do next: the clock is the first one's, a signal may reach any.
        agree = trainer.strategy.reduce_boolean_decision
        stopping = agree(self._signal is not None, all=False)
        due = agree(trainer.is_global_zero and self._checkpoint_due(), all=False)
        if validate or stopping or step % CHECK_EVERY == 0 or step == 1:
            self._note_losses(trainer)
        if validate:
            self._pause_clock()
            self._validate(trainer, pl_module)
            self._started = time.perf_counter()
        if last or stopping or due:
            self._pause_clock()
            self._save(trainer)
            self._started = time.perf_counter()
        if stopping:
            number = self._signal or signal.SIGTERM
            raise InterruptedRunError(signal.Signals(number).name)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    # -- the parts --------------------------------------------------------------------------------

    def _note_losses(self, trainer: pl.Trainer) -> None:
        """Write the losses since the last look to the journal; DivergedError if one says so."""
        for step, tokens, lr, loss in self._losses:
            value = float(trainer.strategy.reduce(loss, reduce_op="mean"))
            self._write(trainer, {"step": step, "tokens": tokens, "train/loss": value, "lr": lr})
            if self.state["first_loss"] is None:
                self.state["first_loss"] = value
            if not math.isfinite(value) or value > DIVERGED_AT * self.state["first_loss"]:
                self._flush(trainer)
                raise DivergedError(
                    f"train/loss={value:.4g} at step {step}: not finite, or over {DIVERGED_AT:g} "
                    f"times the first step's {self.state['first_loss']:.4g}"
                )
        self._losses = []

    def _validate(self, trainer: pl.Trainer, module: HeadcountModule) -> None:
        scored = evaluate(module.model, module.task, "val").loss if trainer.is_global_zero else 0.0
        loss = trainer.strategy.broadcast(scored)
        state = self.state
        self._write(trainer, {"step": state["step"], "tokens": state["tokens"], "val/loss": loss})
        state["val_loss_last"] = loss
        if not math.isfinite(loss):
            self._flush(trainer)
            raise DivergedError(f"val/loss={loss} at step {state['step']}: not finite")
        if state["val_loss"] is None or loss < state["val_loss"]:
            state["val_loss"], state["val_best_step"] = loss, state["step"]
            trainer.save_checkpoint(self.best, weights_only=True)

    def _checkpoint_due(self) -> bool:
        waited = time.monotonic() - self._saved_at
        return waited > max(CHECKPOINT_SECONDS, self._save_seconds / CHECKPOINT_SHARE)

    def _save(self, trainer: pl.Trainer) -> None:
        """Journal first, then the checkpoint, then whoever listens: a kill in between is mended by
        the journal's own trimming when the run is taken up again."""
        self._note_losses(trainer)
        self.before_saving()
        rows = self._flush(trainer)
        start = time.monotonic()
        trainer.save_checkpoint(self.last)
        self._saved_at = time.monotonic()
        self._save_seconds = self._saved_at - start
        for row in rows:
            for logger in trainer.loggers:
                logger.log_metrics({k: v for k, v in row.items() if k != "step"}, step=row["step"])
        if trainer.is_global_zero:
            self.on_saved(self)

    def _write(self, trainer: pl.Trainer, row: dict[str, Any]) -> None:
        if trainer.is_global_zero:
            self.journal.write(row)

    def _flush(self, trainer: pl.Trainer) -> list[dict[str, Any]]:
        return self.journal.flush() if trainer.is_global_zero else []

    def _pause_clock(self) -> None:
        self.state["seconds"] += time.perf_counter() - self._started

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Remember the signal and stop after the step in flight; a second one stops at once."""
        if self._signal is not None:
            raise KeyboardInterrupt
        self._signal = number
