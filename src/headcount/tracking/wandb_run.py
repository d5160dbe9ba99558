"""One run in Weights & Biases: a follower of the run's plain files.

metrics.jsonl and record.json are the truth; this hands them over. What W&B already holds of a run is
not sent again, so logging along, resuming and uploading later are one piece of code. W&B's trouble
is told in one line and never reaches the training.
"""

import contextlib
import json
import logging
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pytorch_lightning.loggers import Logger

from headcount.study.records import Record
from headcount.tracking import agent, connection, content, keys
from headcount.tracking.upload_note import UploadNote

log = logging.getLogger(__name__)

EXIT_CODES = {"completed": 0, "interrupted": 130}


class WandbRun(Logger):
    """A run that has been started in W&B. `trouble` holds the first thing that went wrong since."""

    def __init__(
        self,
        record: Record,
        folder: Path,
        mode: Literal["offline", "online"],
        project: str,
        entity: str | None,
        live: bool = True,
    ) -> None:
        """Start the run, or take it up where W&B has it. Raises whatever W&B raises."""
        import wandb

        super().__init__()
        self.folder = folder
        self.mode = mode
        self.note = UploadNote.of(folder, project, entity)
        self.trouble: str | None = None
        self._every_steps: int = record.config["logger"]["every_steps"]
        self._position = 0
        if mode == "online":
            connection.require_key()
        named: dict[str, Any] = {
            "id": content.wandb_id(record),
            "project": project,
            "entity": entity,
        }
        self._run = wandb.init(
            **({} if agent.is_running() else named),  # the agent has named its run
            name=content.run_name(record),
            group=record.study,
            job_type="train",
            tags=content.tags(record),
            config=content.config(record),
            dir=folder,
            mode=mode,
            resume="allow" if mode == "online" else None,
            reinit="create_new",  # a run of the caller's own stays out of it
            settings=connection.settings(live),
        )
        self._drop_earlier_attempts()
        self._first_step = self._run.starting_step
        self._run.define_metric(keys.TOKENS)
        for metric in keys.CURVES:
            self._run.define_metric(metric, step_metric=keys.TOKENS)

    # -- what Lightning calls --------------------------------------------------------------------

    @property
    def name(self) -> str:
        return "wandb"

    @property
    def version(self) -> str:
        return str(self._run.id)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Nothing: the resolved configuration went along with the start."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Hand over what is new in the journal; these metrics have just been written to it."""
        with self._guarded("logging"):
            self._follow()

    # -- the end ---------------------------------------------------------------------------------

    def close(self, record: Record) -> None:
        """Hand over the rest of the curve, the headline, tables, pictures and the way it ended."""
        with self._guarded("finishing"):
            self._follow()
            self._run.summary.update(content.summary(record))
            self._run.summary.update(content.media(record, self.folder))
            if record.config["logger"]["checkpoints"] and record.status == "completed":
                self._run.log_model(
                    str(self.folder / "checkpoints" / "best.ckpt"), content.wandb_id(record)
                )
        with self._guarded("finishing"):
            self._run.finish(exit_code=EXIT_CODES.get(record.status, 1))
        if self.mode == "online" and self.trouble is None:
            self.note.write(record)

    # -- the parts -------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Log the journal's whole rows that W&B does not hold yet."""
        path = self.folder / "metrics.jsonl"
        if not path.exists():
            return
        with open(path, "rb") as journal:
            journal.seek(self._position)
            for line in journal:
                if not line.endswith(b"\n"):
                    break  # torn by a kill
                self._position += len(line)
                row = json.loads(line)
                step = row.pop("step")
                due = keys.VAL_LOSS in row or step == 1 or step % self._every_steps == 0
                if due and step >= self._first_step:
                    # The journal's null is a loss that was not finite.
                    self._run.log({k: math.nan if v is None else v for k, v in row.items()}, step)

    def _drop_earlier_attempts(self) -> None:
        """What W&B wrote of an earlier attempt stands in the journal, and comes anew from there."""
        ours = Path(self._run.dir).parent
        for old in ours.parent.glob("*run-*"):
            if old != ours and old.is_dir() and not old.is_symlink():
                shutil.rmtree(old, ignore_errors=True)

    @contextlib.contextmanager
    def _guarded(self, doing: str) -> Iterator[None]:
        """Keep W&B's trouble away from the run; tell its first instance in one line."""
        try:
            yield
        except Exception as error:
            log.exception("W&B: %s", doing)
            if self.trouble is None:
                self.trouble = connection.first_line(error)
                connection.tell(
                    f"{doing} failed ({self.trouble}); the run's own files are complete, "
                    "`headcount sync` uploads them"
                )
