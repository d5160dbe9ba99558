"""The folder of a study: where each record lies, and writing it so that no reader sees half of one.

<results>/<study>/plan.json
                  runs/<run_id>/{record.json,metrics.jsonl,config.yaml,run.log,checkpoints/}
                  costs/<cost_id>.json
                  report/{index.html,table.csv,figures/*.png}
"""

import json
import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from headcount.config import Config
from headcount.errors import HeadcountError, RequestError
from headcount.study import claims
from headcount.study.claims import Claim, Owner
from headcount.study.records import Cost, Record

T = TypeVar("T", Record, Cost)

TEMPORARY = ".tmp"
"""Ends the names of files that are being written; a kill may leave one behind."""


class Study:
    """A study's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = folder.resolve().name
        self.plan_path = folder / "plan.json"
        self.runs = folder / "runs"
        self.costs = folder / "costs"
        self.report = folder / "report"

    @classmethod
    def of(cls, config: Config) -> "Study":
        """The study that a configuration belongs to."""
        return cls(Path(config.paths.results) / config.study)

    @classmethod
    def find(cls, name_or_folder: str, results: Path) -> "Study":
        """The study of that name under `results`, or in that folder; RequestError if neither is one."""
        for folder in (Path(name_or_folder), results / name_or_folder):
            if (folder / "runs").is_dir() or (folder / "costs").is_dir():
                return cls(folder)
        known = sorted(p.parent.name for p in results.glob("*/runs"))
        raise RequestError(
            f"study {name_or_folder}: no such study under {results}/ and no study's folder; "
            f"valid: {', '.join(known) or 'none there yet'}"
        )

    def run_folder(self, run_id: str) -> Path:
        return self.runs / run_id

    def claim(self, run_id: str) -> AbstractContextManager[Claim | None]:
        """Take a run for this process while the block lasts, or learn (None) that another has it."""
        return claims.claim(self.run_folder(run_id))

    def holder(self, run_id: str) -> Owner | None:
        """The live process that works on a run, if there is one."""
        return claims.holder(self.run_folder(run_id))

    def record(self, run_id: str) -> Record | None:
        path = self.run_folder(run_id) / "record.json"
        return read_record(path) if path.exists() else None

    def write_record(self, record: Record) -> None:
        write_atomically(
            self.run_folder(record.run_id) / "record.json",
            record.model_dump_json(by_alias=True, indent=1),
        )

    def known(self) -> set[str]:
        """The runs that have a folder: one look instead of one a run."""
        return set(os.listdir(self.runs)) if self.runs.is_dir() else set()

    def records(self, damaged: dict[Path, str] | None = None) -> Iterator[Record]:
        """Every run's record, in a stable order. What cannot be read is told in `damaged`, where that is
        given, and left out; else it is a HeadcountError."""
        return _each(Record, self.runs.glob("*/record.json"), damaged)

    def cost(self, cost_id: str) -> Cost | None:
        path = self.costs / f"{cost_id}.json"
        return _parse(Cost, path) if path.exists() else None

    def write_cost(self, cost: Cost) -> None:
        write_atomically(
            self.costs / f"{cost.cost_id}.json", cost.model_dump_json(by_alias=True, indent=1)
        )

    def cost_records(self, damaged: dict[Path, str] | None = None) -> Iterator[Cost]:
        """Every cost record, likewise."""
        return _each(Cost, self.costs.glob("*.json"), damaged)

    def planned(self) -> list[dict[str, Any]]:
        """The points of the study's last plan: run_id, layout, seed, steps, overrides."""
        points: list[dict[str, Any]] = self._plan().get("points", [])
        return points

    def selection_seeds(self) -> set[int]:
        """Seeds whose runs only choose learning rates, as the study's last plan says."""
        return set(self._plan().get("selection_seeds", []))

    def _plan(self) -> dict[str, Any]:
        try:
            plan: dict[str, Any] = json.loads(self.plan_path.read_text())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise HeadcountError(
                f"{self.plan_path}: not a plan ({error}); once it is removed, the same command makes it "
                "again"
            ) from error
        return plan


def read_record(path: Path) -> Record:
    """Read one record.json; HeadcountError, naming the file, where it is not one."""
    return _parse(Record, path)


def _each(model: type[T], paths: Iterable[Path], damaged: dict[Path, str] | None) -> Iterator[T]:
    for path in sorted(paths):
        try:
            found = _parse(model, path)
        except HeadcountError as error:
            if damaged is None:
                raise
            damaged[path] = str(error)
            continue
        yield found


def _parse(model: type[T], path: Path) -> T:
    try:
        return model.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        what = ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
        raise HeadcountError(
            f"{path}: not a record ({what}); once it is removed, the same command makes it again"
        ) from error


def write_atomically(path: Path, text: str) -> None:
    """Replace the file in one step: a reader, a kill or a full disk never leaves half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}{TEMPORARY}")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
