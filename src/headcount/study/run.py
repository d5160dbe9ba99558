"""One run's life: from a configuration to a finished record, whatever happens on the way."""

import logging
import os
import platform
import shlex
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytorch_lightning as pl
import torch

from headcount.config import Config
from headcount.measure.protocol import cost_id
from headcount.measure.record import run_layout_record
from headcount.model import Transformer
from headcount.study.identity import code_identity, run_id
from headcount.study.records import Failure, Record, Training
from headcount.study.store import Study, write_atomically
from headcount.tasks import build_task
from headcount.tracking.loggers import close_logger, open_logger
from headcount.training.evaluation import evaluate
from headcount.training.module import HeadcountData, HeadcountModule
from headcount.training.progress import (
    AtomicCheckpointIO,
    DivergedError,
    InterruptedRunError,
    RunProgress,
)

log = logging.getLogger(__name__)


def execute(config: Config) -> Record:
    """Train and score one run, or finish what an earlier attempt left of it.

    Never raises for what goes wrong inside the run: the record says it, and the run's log holds the
    traceback. A completed run is returned as it is; one that another live process works on too.
    """
    study = Study.of(config)
    identity = run_id(config)
    folder = study.run_folder(identity)
    with study.claim(identity) as ours:
        record = study.record(identity)
        if record is not None and (record.status == "completed" or not ours):
            return record
        record = new_record(config, study, record)
        study.write_record(record)
        with run_log(folder / "run.log"):
            _attempt(config, study, record)
        study.write_record(record)
    return record


def _attempt(config: Config, study: Study, record: Record) -> None:
    """Fill in the record; every way of ending is a status."""
    logger = None
    try:
        write_atomically(study.run_folder(record.run_id) / "config.yaml", as_yaml(record))
        logger = open_logger(config, study.run_folder(record.run_id), record)
        _train_and_score(config, study, record, [logger] if logger else [])
        record.status = "completed"
    except DivergedError as error:
        record.status, record.error = "diverged", failure(error)
    except (InterruptedRunError, KeyboardInterrupt) as error:
        record.status, record.error = "interrupted", failure(error)
    except Exception as error:
        record.status, record.error = "failed", failure(error)
    if record.error is not None:
        log.error("%s: %s", record.status, record.error.traceback)
    record.training.finished = now()
    try:
        close_logger(logger, record)
    except Exception:  # a logger's trouble never costs a result
        log.exception("the logger did not close")


def _train_and_score(config: Config, study: Study, record: Record, loggers: list) -> None:
    folder = study.run_folder(record.run_id)
    torch.set_num_threads(config.trainer.threads)
    task = build_task(config)
    record.code["data_hash"] = task.data_hash
    module = HeadcountModule(config, task)

    def heartbeat(progress: RunProgress) -> None:
        note(record, progress)
        study.write_record(record)

    progress = RunProgress(folder, config.trainer.val_every_steps, heartbeat)
    trainer = pl.Trainer(
        max_steps=config.trainer.max_steps,
        max_epochs=-1,
        accumulate_grad_batches=config.trainer.accumulate_grad_batches,
        gradient_clip_val=config.optim.grad_clip or None,
        precision=config.trainer.precision,
        accelerator=config.trainer.accelerator,
        devices=config.trainer.devices,
        strategy=config.trainer.strategy,
        logger=loggers,
        callbacks=[progress],
        plugins=[AtomicCheckpointIO()],
        default_root_dir=folder,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    resume = progress.last if progress.last.exists() else None
    if resume:
        step = torch.load(resume, weights_only=True)["global_step"]
        record.training.resumed_from.append(step)
        log.info("resuming from step %d", step)
    try:
        trainer.fit(module, HeadcountData(config, task), ckpt_path=resume, weights_only=True)
    finally:
        note(record, progress)
    scored = evaluate(load_model(config, progress.best), task, "test")
    record.quality.test_loss = scored.loss
    record.quality.test_accuracy = scored.accuracy
    record.quality.test_bits_per_byte = scored.bits_per_byte
    record.quality.loss_unit = task.loss_unit
    record.quality.slices = scored.slices


def note(record: Record, progress: RunProgress) -> None:
    """Carry the callback's state into the record."""
    state, training, quality = progress.state, record.training, record.quality
    training.steps, training.tokens = state["step"], state["tokens"]
    training.seconds = state["seconds"]
    training.tokens_per_s = state["tokens"] / state["seconds"] if state["seconds"] else None
    quality.val_loss, quality.val_best_step = state["val_loss"], state["val_best_step"]
    quality.val_loss_last = state["val_loss_last"]


def load_model(config: Config, checkpoint: Path) -> Transformer:
    """The model of a run with the weights of one of its checkpoints, in eval mode on the CPU."""
    state = torch.load(checkpoint, weights_only=True, map_location="cpu")["state_dict"]
    model = Transformer(config.shape, backend=config.model.backend)
    model.load_state_dict({k.removeprefix("model."): v for k, v in state.items()})
    return model.eval()


def new_record(config: Config, study: Study, earlier: Record | None) -> Record:
    """The record of a run that begins, or goes on from what an earlier attempt noted."""
    training = earlier.training if earlier else Training()
    training.started = training.started or now()
    training.finished = None
    return Record(
        run_id=run_id(config),
        study=config.study,
        status="running",
        config=config.model_dump(mode="json"),
        layout=run_layout_record(config),
        training=training,
        cost=study.cost(cost_id(config)),
        environment=environment(config),
        code=dict(code_identity()),
    )


@contextmanager
def run_log(path: Path) -> Iterator[None]:
    """Send what this run logs and warns of to its own file, and to no terminal."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root, lightning = logging.getLogger(), logging.getLogger("pytorch_lightning")
    kept = (root.handlers[:], root.level, lightning.handlers[:], lightning.propagate)
    root.handlers, lightning.handlers, lightning.propagate = [handler], [], True
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            for chatter in (DeprecationWarning, FutureWarning):  # libraries among themselves
                warnings.simplefilter("ignore", chatter)
            log.info("command: %s", shlex.join(sys.argv))
            yield
    finally:
        logging.captureWarnings(False)
        root.handlers, level, lightning.handlers, lightning.propagate = kept
        root.setLevel(level)
        handler.close()


def failure(error: BaseException) -> Failure:
    text = str(error).strip()
    return Failure(
        type=type(error).__name__,
        message=text.splitlines()[0] if text else type(error).__name__,
        traceback="".join(traceback.format_exception(error)),
    )


def as_yaml(record: Record) -> str:
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(record.config))


def environment(config: Config) -> dict[str, object]:
    """Where the run runs."""
    return {
        "host": platform.node(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "pytorch_lightning": pl.__version__,
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cpu_count": os.cpu_count(),
        "threads": config.trainer.threads,
    }


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
