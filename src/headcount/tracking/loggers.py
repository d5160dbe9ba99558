"""The logger that a run asked for, beside the plain files that it always has."""

from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger

from headcount.config import Config
from headcount.errors import RequestError
from headcount.study.records import Record

EXIT_CODES = {"completed": 0, "interrupted": 130}


def open_logger(config: Config, folder: Path, record: Record) -> Logger | None:
    """Start the logger of a run; None for logger=none."""
    match config.logger.name:
        case "wandb":
            return _open_wandb(config, folder, record)
        case "csv":
            return CSVLogger(folder, name="csv", version="")
        case "tensorboard":
            try:
                return TensorBoardLogger(folder, name="tensorboard", version="")
            except ModuleNotFoundError:
                raise RequestError(
                    "logger=tensorboard: TensorBoard is not installed; pip install 'headcount[tensorboard]'"
                ) from None
        case "none":
            return None


def close_logger(logger: Logger | None, record: Record) -> None:
    """Hand over the headline figures and the way the run ended."""
    if logger is None:
        return
    headline = record.headline()
    numbers = {k: v for k, v in headline.items() if isinstance(v, int | float)}
    if isinstance(logger, WandbLogger):
        run = logger.experiment
        run.summary.update({**headline, "status": record.status})
        run.finish(exit_code=EXIT_CODES.get(record.status, 1))
        return
    if isinstance(logger, TensorBoardLogger):
        logger.log_hyperparams(_flat(record.config), numbers)
    else:
        logger.log_hyperparams(record.config)
        logger.log_metrics(numbers, step=record.training.steps)
    logger.finalize("success" if record.status == "completed" else "failed")


def _open_wandb(config: Config, folder: Path, record: Record) -> WandbLogger:
    import wandb

    layout, run_id = record.layout, record.run_id
    run = wandb.init(
        name=f"{layout.label} s{config.seed} {run_id}",
        id=f"{config.study}-{run_id}",
        project=config.logger.project,
        entity=config.logger.entity,
        group=config.study,
        job_type="train",
        tags=[config.task.name, layout.kind],
        dir=folder,
        mode=config.logger.mode,
        resume="allow" if config.logger.mode == "online" else None,
        settings=wandb.Settings(silent=True, console="off"),
        # The resolved configuration under its own key: a swept key of W&B's then never lands in it.
        config={"headcount": record.config, "layout": layout.model_dump()},
    )
    run.define_metric("tokens")
    for metric in ("train/loss", "val/loss", "lr"):
        run.define_metric(metric, step_metric="tokens")
    return WandbLogger(experiment=run)


def _flat(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, dict):
            flat |= _flat(item, f"{prefix}{key}.")
        else:
            flat[prefix + key] = item if isinstance(item, int | float | bool) else str(item)
    return flat
