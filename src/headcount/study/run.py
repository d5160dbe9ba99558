"""One run's life: from a configuration to a finished record, whatever happens on the way."""

import logging
import os
import platform
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytorch_lightning as pl
import torch
from torch import Tensor

from headcount.config import Config
from headcount.measure.protocol import cost_id
from headcount.measure.record import run_layout_record
from headcount.model import Transformer
from headcount.redaction import command_line
from headcount.study.claims import Claim
from headcount.study.identity import code_identity, run_id
from headcount.study.plan import Point
from headcount.study.records import Failure, Record, Training
from headcount.study.store import TEMPORARY, Study, write_atomically
from headcount.tasks import Task, build_task
from headcount.tracking.loggers import close_logger, open_logger
from headcount.training.evaluation import evaluate
from headcount.training.fit import fit
from headcount.training.journal import Journal
from headcount.training.progress import (
    AtomicCheckpointIO,
    DivergedError,
    InterruptedRunError,
    RunProgress,
)
from headcount.training.ranks import other_ranks

log = logging.getLogger(__name__)

STEPS_TAKEN = "epoch_loop.manual_optimization.optim_step_progress"
"""Where Lightning's checkpoints count the steps of a module that takes them itself."""


def execute(config: Config) -> Record | None:
    """Train and score one run, or finish what an earlier attempt left of it.

    Never raises for what goes wrong inside the run: the record says it, and the run's log holds the
    traceback. A completed run is returned as it is; one that another live process works on too, or
    None where that process has not written its record yet. OSError where the record itself cannot
    be written.
    """
    study = Study.of(config)
    identity = run_id(config)
    record = study.record(identity)
    if record is not None and record.status == "completed":
        return record
    with study.claim(identity) as claim:
        record = study.record(identity)
        if claim is None or (record is not None and record.status == "completed"):
            return record
        folder = study.run_folder(identity)
        _clear_torn_files(folder)
        record = new_record(config, study, record)
        study.write_record(record)
        with run_log(folder / "run.log"):
            _attempt(config, study, record, claim)
        if claim.holds():
            study.write_record(record)
    return record


def run_in_process(points: Sequence[Point], stop: threading.Event) -> dict[str, str]:
    """Run points one after another in this process; KeyboardInterrupt once one was interrupted."""
    for point in points:
        if stop.is_set():
            break
        record = execute(point.config)
        if record is not None and record.status == "interrupted":
            raise KeyboardInterrupt
    return {}


def _clear_torn_files(folder: Path) -> None:
    """Remove what a kill left half written."""
    for path in folder.rglob(f".*{TEMPORARY}"):
        path.unlink(missing_ok=True)


def _attempt(config: Config, study: Study, record: Record, claim: Claim) -> None:
    """Fill in the record; every way of ending is a status."""
    logger = None
    try:
        write_atomically(study.run_folder(record.run_id) / "config.yaml", as_yaml(record))
        logger = open_logger(config, study.run_folder(record.run_id), record)
        _train_and_score(config, study, record, claim, [logger] if logger else [])
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


def _train_and_score(
    config: Config, study: Study, record: Record, claim: Claim, loggers: list
) -> None:
    folder = study.run_folder(record.run_id)
    torch.set_num_threads(config.trainer.threads)
    task = build_task(config)
    record.code["data_hash"] = task.data_hash

    def on_saved(progress: RunProgress) -> None:
        note(record, progress)
        study.write_record(record)

    def still_ours() -> None:
        if not claim.holds():
            raise InterruptedRunError(
                "another process took the run over while this one stood still"
            )

    progress = RunProgress(folder, config.trainer.val_every_steps, still_ours, on_saved)
    step = _saved_step(progress.last)
    if step is not None:
        record.training.resumed_from.append(step)
        log.info("resuming from step %d", step)
    start = None
    if config.origin is not None:
        from headcount.heads.derive import start_weights  # which knows of runs itself

        progress.state["tokens"] = config.origin.tokens
        start = start_weights(config, study)
    try:
        if start is not None and not config.own_steps:
            adopt(config, task, progress, start)
        else:
            with other_ranks(config, folder):
                fit(config, task, progress, loggers, start)
    finally:
        note(record, progress)
    scored = evaluate(load_model(config, progress.best), task, "test")
    record.quality.test_loss = scored.loss
    record.quality.test_accuracy = scored.accuracy
    record.quality.test_bits_per_byte = scored.bits_per_byte
    record.quality.loss_unit = task.loss_unit
    record.quality.slices = scored.slices


def adopt(config: Config, task: Task, progress: RunProgress, start: Mapping[str, Tensor]) -> None:
    """A run without steps of its own: the weights it was given are its checkpoint."""
    model = Transformer(config.shape)
    model.load_state_dict(start)
    loss = evaluate(model, task, "val").loss
    state = progress.state
    state["val_loss"] = state["val_loss_last"] = loss
    state["val_best_step"] = 0
    journal = Journal(progress.folder / "metrics.jsonl", -1)
    journal.write({"step": 0, "tokens": state["tokens"], "val/loss": loss})
    journal.flush()
    weights = {"state_dict": {f"model.{name}": value for name, value in start.items()}}
    AtomicCheckpointIO().save_checkpoint(weights, progress.best)


def note(record: Record, progress: RunProgress) -> None:
    """Carry the callback's state into the record. Steps and tokens are all that went into the
    weights; seconds and their rate are this run's own."""
    state, training, quality = progress.state, record.training, record.quality
    before = record.config["origin"] or {"steps": 0, "tokens": 0}
    training.steps, training.tokens = before["steps"] + state["step"], state["tokens"]
    training.seconds = state["seconds"]
    own = state["tokens"] - before["tokens"]
    training.tokens_per_s = own / state["seconds"] if state["seconds"] else None
    quality.val_loss, quality.val_best_step = state["val_loss"], state["val_best_step"]
    quality.val_loss_last = state["val_loss_last"]


def _saved_step(checkpoint: Path) -> int | None:
    """The step that a run goes on from; None where it begins anew. A checkpoint that cannot be read is
    removed, with a warning: a failing disk must not fail the run for ever."""
    if not checkpoint.exists():
        return None
    try:
        saved = torch.load(checkpoint, weights_only=True)
        step: int = saved["global_step"]
        # Lightning counts steps by how they are taken; of one that took them otherwise it would go on
        # with the first batch.
        if saved["loops"]["fit_loop"][STEPS_TAKEN]["total"]["completed"] != step:
            raise ValueError(f"its {step} steps are counted otherwise")
    except Exception as error:
        log.warning("%s cannot be read (%s): beginning anew", checkpoint, error)
        checkpoint.unlink()
        return None
    return step


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
            log.info("command: %s", command_line(sys.argv))
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
