"""Lightning's trainer, set up for one run: everything that it would do by itself, RunProgress does."""

from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.environments import LightningEnvironment
from torch import Tensor

from headcount.config import Config
from headcount.tasks import Task
from headcount.training.module import HeadcountData, HeadcountModule
from headcount.training.progress import AtomicCheckpointIO, RunProgress


def fit(
    config: Config,
    task: Task,
    progress: RunProgress,
    loggers: list[Any],
    start: Mapping[str, Tensor] | None = None,
) -> None:
    """Train from the run's last checkpoint, or from the beginning, to its last step. start: the
    weights to begin with, for a run that goes on from another's."""
    torch.set_num_threads(config.trainer.threads)
    trainer = pl.Trainer(
        max_steps=config.own_steps,
        max_epochs=-1,
        precision=config.trainer.precision,
        accelerator=config.trainer.accelerator,
        devices=config.trainer.devices,
        strategy=config.trainer.strategy,
        logger=loggers,
        callbacks=[progress],
        # Named, or Lightning would take a job of SLURM's for one that it has to lead.
        plugins=[AtomicCheckpointIO(), LightningEnvironment()],
        default_root_dir=progress.folder,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
    )
    resume = progress.last if progress.last.exists() else None
    trainer.fit(
        HeadcountModule(config, task, start),
        HeadcountData(config, task),
        ckpt_path=resume,
        weights_only=True,
    )
