"""The logger that a run asked for, beside the plain files that it always has."""

from pathlib import Path
from typing import Any, Literal

from pytorch_lightning.loggers import CSVLogger, Logger, TensorBoardLogger

from headcount.config import Config
from headcount.errors import RequestError
from headcount.study.records import Record
from headcount.tracking import agent, connection
from headcount.tracking.wandb_run import WandbRun

_out_of_reach: set[str] = set()
"""W&B servers that this process could not start a run on: later runs do not wait for them again."""


def open_logger(config: Config, folder: Path, record: Record) -> Logger | None:
    """Start the logger of a run; None for logger=none, and where W&B does not start at all."""
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
    if isinstance(logger, WandbRun):
        logger.close(record)
        return
    headline = record.headline()
    numbers = {k: v for k, v in headline.items() if isinstance(v, int | float)}
    if isinstance(logger, TensorBoardLogger):
        logger.log_hyperparams(_flat(record.config), numbers)
    else:
        logger.log_hyperparams(record.config)
        logger.log_metrics(numbers, step=record.training.steps)
    logger.finalize("success" if record.status == "completed" else "failed")


def _open_wandb(config: Config, folder: Path, record: Record) -> WandbRun | None:
    """Online where that is asked for and can be had, else offline, else not at all."""

    def start(mode: Literal["offline", "online"]) -> WandbRun:
        return WandbRun(record, folder, mode, config.logger.project, config.logger.entity)

    try:
        if config.logger.mode == "offline" and not agent.is_running():
            return start("offline")
        server = connection.server()
        if server not in _out_of_reach:
            try:
                return start("online")
            except Exception as error:
                _out_of_reach.add(server)
                connection.restart()
                connection.tell(
                    f"logging to {server} did not start ({connection.first_line(error)}); "
                    f"runs are logged offline, `headcount sync {config.study}` uploads them"
                )
        return start("offline")
    except Exception as error:
        connection.tell(
            f"did not start ({connection.first_line(error)}); the run's own files are complete"
        )
        return None


def _flat(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, dict):
            flat |= _flat(item, f"{prefix}{key}.")
        else:
            flat[prefix + key] = item if isinstance(item, int | float | bool) else str(item)
    return flat
