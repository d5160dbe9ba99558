"""What W&B shows of a record: its names, its summary, its tables and pictures."""

import math
from pathlib import Path
from typing import Any

from headcount.study.records import Cost, Record
from headcount.tracking import keys

NAME_LENGTH, TAG_LENGTH, ERROR_LENGTH = 128, 64, 500
"""The longest name and tag that W&B takes; of an error, as much as a table can show."""


def wandb_id(record: Record) -> str:
    """The run's id in W&B, from its identity: the same run is the same one there."""
    return f"{record.study}-{record.run_id}"


def run_name(record: Record) -> str:
    """Layout and seed to read, the run's id to be unique."""
    readable = f"{record.layout.label} s{record.config['seed']}"
    return f"{readable[: NAME_LENGTH - len(record.run_id) - 1]} {record.run_id}"


def tags(record: Record) -> list[str]:
    return [tag[:TAG_LENGTH] for tag in (record.config["task"]["name"], record.layout.kind)]


def config(record: Record) -> dict[str, Any]:
    return {
        keys.CONFIG_ROOT: record.config,
        "layout": record.layout.model_dump(),
        "environment": record.environment,
        "code": record.code,
    }


def summary(record: Record) -> dict[str, Any]:
    """The headline under its pinned keys, how the run ended, and what a search over quality and
    latency minimises."""
    flat = {**record.headline(), keys.STATUS: record.status}
    if record.error:
        flat[keys.ERROR] = f"{record.error.type}: {record.error.message}"[:ERROR_LENGTH]
    loss, latency = record.quality.val_loss, flat.get("latency/decode_ms_per_token_p50")
    if loss is not None and latency:
        flat[keys.OBJECTIVE] = loss + record.config["logger"]["latency_weight"] * math.log2(latency)
    return flat


def media(record: Record, folder: Path) -> dict[str, Any]:
    """The latency grid as a table, and the per-head pictures if any were made of the run."""
    import wandb

    shown: dict[str, Any] = {
        f"heads/{path.stem}": wandb.Image(str(path))
        for path in sorted((folder / "heads").glob("*.png"))
    }
    if record.cost:
        shown[keys.LATENCY_GRID] = wandb.Table(GRID_COLUMNS, _grid(record.cost))
    return shown


GRID_COLUMNS: list[str | int] = [
    "phase",
    "context",
    "batch_size",
    "p50_ms",
    "p90_ms",
    "p99_ms",
    "bound_ms",
    "kernel",
    "kv_sharing",
]


def _grid(cost: Cost) -> list[list[Any]]:
    points = [*cost.points, *([cost.train_step] if cost.train_step else [])]
    return [[getattr(point, str(column)) for column in GRID_COLUMNS] for point in points]
