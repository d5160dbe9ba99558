"""The run that a command speaks of: its record, its configuration, its trained model and its task."""

from dataclasses import dataclass
from pathlib import Path

import torch

from headcount.config import Config
from headcount.errors import RequestError
from headcount.model import Transformer
from headcount.study.records import Record
from headcount.study.replay import config_of
from headcount.study.run import load_model
from headcount.study.store import Study, read_record
from headcount.tasks import Task, build_task

CHECKPOINT = "checkpoints/best.ckpt"
"""The weights that a run's test figures are of: the best by validation loss."""


@dataclass(frozen=True)
class Source:
    """A completed run."""

    folder: Path
    record: Record
    config: Config

    @classmethod
    def of(cls, folder: Path) -> "Source":
        """RequestError for a run that did not complete, has no checkpoint, or was written by a
        version of the program that this one cannot read."""
        record = read_record(folder / "record.json")
        if record.status != "completed":
            raise RequestError(f"run {record.run_id}: {record.status}; valid: a completed run")
        if not (folder / CHECKPOINT).is_file():
            raise RequestError(
                f"run {record.run_id}: {folder / CHECKPOINT} is missing; valid: a run with its "
                "checkpoint"
            )
        # The study lies where the run is found, wherever it was when the record was written.
        study = folder.resolve().parents[1]
        config = config_of(record, study.parent)
        return cls(folder, record, config.model_copy(update={"study": study.name}))

    @property
    def study(self) -> Study:
        return Study(self.folder.resolve().parents[1])

    def model(self) -> Transformer:
        """The run's model in eval mode, computed by sdpa whatever it was trained with: the weights
        are the same for every backend."""
        torch.set_num_threads(self.config.trainer.threads)
        plain = self.config.model.model_copy(update={"backend": "sdpa"})
        return load_model(self.config.model_copy(update={"model": plain}), self.folder / CHECKPOINT)

    def task(self) -> Task:
        return build_task(self.config)
