"""The Lightning module and data module: one model on one task, optimised as the config says."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytorch_lightning as pl
import torch
from torch import Tensor

from headcount.config import Config, Optim
from headcount.model import Transformer
from headcount.seeding import derive
from headcount.tasks import Batch, Task


class Part(NamedTuple):
    """One of the equal parts that a step's batch is taken in."""

    batch: Batch
    n_scored: int
    """Scored positions of the whole step."""
    is_last: bool


class HeadcountModule(pl.LightningModule):
    """Trains a Transformer with AdamW, warm-up and cosine. start: the weights it goes on from, by the
    model's own names; None for those that the seed draws."""

    def __init__(
        self, config: Config, task: Task, start: Mapping[str, Tensor] | None = None
    ) -> None:
        super().__init__()
        self.automatic_optimization = False  # a short step feels each of its hooks
        self.config = config
        self.task = task
        model = config.model
        self.model = Transformer(
            config.shape, model.dropout, config.seed, model.attention_dropout, model.backend
        )
        if start is not None:
            self.model.load_state_dict(start)
        if config.trainer.compile:
            # By block, as all blocks then share one compilation; in place, so that the weights keep
            # their names and load into a model that is not compiled.
            for block in self.model.blocks:
                block.compile(dynamic=False)

    def loss(self, part: Part) -> Tensor:
        """A part's share of the mean loss over the scored positions of the whole step: parts with
        unequal counts still add up to the full batch."""
        own = part.batch
        losses = self.task.losses(self.model(own.inputs, documents=own.documents), own)
        # Times the ranks, as DDP takes the mean of their gradients.
        return losses.sum() * (self.config.trainer.devices / part.n_scored)

    def training_step(self, part: Part, batch_idx: int) -> Tensor:
        """Backward, and after a step's last part its update; returns the part's loss."""
        loss = self.loss(part)
        # Lightning holds autocast over all of this, but only the forward wants it.
        with torch.autocast(self.device.type, enabled=False):
            self.manual_backward(loss)
            if part.is_last:
                optimizer: Any = self.optimizers()
                optimizer.step()
                optimizer.zero_grad()
                schedule: Any = self.lr_schedulers()
                schedule.step()
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Clip gradients, which are whole and unscaled here in every precision."""
        if self.config.optim.grad_clip:
            torch.nn.utils.clip_grad_norm_(self.parameters(), self.config.optim.grad_clip)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Give dropout a stream of its own for each part of each step."""
        if self.config.model.dropout or self.config.model.attention_dropout:
            step = self.config.first_step + self.global_step
            torch.manual_seed(derive(self.config.seed, "dropout", step, batch_idx))

    def configure_optimizers(self) -> Any:
        optim, max_steps = self.config.optim, self.config.own_steps
        if self.config.origin is not None:
            # The schedule again, over what may be a twentieth of the steps that it was meant for.
            shorter = min(optim.warmup_steps, max_steps // 10)
            optim = optim.model_copy(update={"warmup_steps": shorter})
        matrices = [p for p in self.parameters() if p.dim() >= 2]
        vectors = [p for p in self.parameters() if p.dim() < 2]
        optimizer = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": optim.weight_decay},
                {"params": vectors, "weight_decay": 0.0},
            ],
            lr=optim.lr,
            betas=(optim.beta1, optim.beta2),
            fused=self.config.trainer.fused,
        )
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: lr_factor(step, optim, max_steps)
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


def lr_factor(step: int, optim: Optim, max_steps: int) -> float:
    """The learning rate of the step-th update (from 0), as a share of `optim.lr`: a line up to 1 at
    update `warmup_steps − 1`, then a cosine that reaches `min_lr_ratio` after the last update."""
    if step < optim.warmup_steps:
        return (step + 1) / optim.warmup_steps
    progress = min(1.0, (step - optim.warmup_steps) / (max_steps - optim.warmup_steps))
    cosine = 0.5 * (1 + math.cos(math.pi * progress))
    return optim.min_lr_ratio + (1 - optim.min_lr_ratio) * cosine


class StepBatches:
    """The training batches from a given step on, without end; each step's batch in equal parts, dealt
    to the ranks in turn."""

    def __init__(self, task: Task, config: Config, first_step: int, rank: int = 0) -> None:
        self.task = task
        self.config = config
        self.first_step = first_step
        self.rank = rank

    def __iter__(self) -> Iterator[Part]:
        ranks = self.config.trainer.devices
        parts = self.config.trainer.accumulate_grad_batches * ranks
        step = self.first_step
        while True:
            batch = self.task.train_batch(self.config.seed, step)
            split = list(batch.parts(parts))
            for part in range(self.rank, parts, ranks):
                yield Part(split[part], batch.n_scored, part + ranks >= parts)
            step += 1


class HeadcountData(pl.LightningDataModule):
    """Hands Lightning the task's batches; a resumed run begins at the step it had reached."""

    def __init__(self, config: Config, task: Task) -> None:
        super().__init__()
        self.config = config
        self.task = task

    def train_dataloader(self) -> StepBatches:
        assert self.trainer is not None
        step = self.config.first_step + self.trainer.global_step
        return StepBatches(self.task, self.config, step, self.trainer.global_rank)
