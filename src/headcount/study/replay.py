"""Running a run again from its record alone, and comparing what comes out, bit for bit."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from headcount.config import Config
from headcount.errors import RequestError
from headcount.study.identity import code_identity
from headcount.study.records import Record
from headcount.study.run import execute
from headcount.study.store import Study, read_record
from headcount.study.tell import say
from headcount.training.journal import read_rows

EXIT_SAME, EXIT_DIFFERENT = 0, 1


def find_run(run: str, results: Path) -> Path:
    """The folder of a run, by the folder itself or by its id in any study under `results`."""
    folders = [Path(run), *sorted(results.glob(f"*/runs/{run}"))]
    found = [f for f in folders if (f / "record.json").is_file()]
    if not found:
        raise RequestError(
            f"run {run}: no run's folder, and no study under {results}/ has a run of this id; "
            "valid: a folder results/STUDY/runs/ID, or the ID"
        )
    if len({f.resolve() for f in found}) > 1:
        raise RequestError(f"run {run}: in several studies; valid: {', '.join(map(str, found))}")
    return found[0]


def replay(folder: Path) -> int:
    """Run it again beside the original, say whether every figure is the same; the exit status."""
    record = read_record(folder / "record.json")
    if record.status != "completed":
        raise RequestError(f"run {record.run_id}: {record.status}; valid: a completed run")
    with tempfile.TemporaryDirectory(prefix="headcount-replay-") as results:
        config = config_of(record, results, logger="none")
        say(f"replaying {folder}: {record.layout.label}, {config.trainer.max_steps:,} steps")
        if config.origin is not None:  # which goes on from the weights of the run beside it
            study = Study.of(config)
            study.runs.mkdir(parents=True)
            before = (folder.parent / config.origin.run).resolve()
            study.run_folder(config.origin.run).symlink_to(before)
        again = execute(config)
        assert again is not None  # nobody else knows the folder
        rows = read_rows(Study.of(config).run_folder(again.run_id) / "metrics.jsonl")
    if again.status != "completed":
        say(f"different: the replay {again.status}: {again.error.message if again.error else ''}")
        return EXIT_DIFFERENT
    for place, ours, theirs in _differences(
        record, again, read_rows(folder / "metrics.jsonl"), rows
    ):
        say(f"different: {place}: {ours} in the record, {theirs} in the replay")
        for line in _changed_since(record, again):
            say(f"  {line}")
        return EXIT_DIFFERENT
    say(f"same, bit for bit: {len(rows):,} rows of metrics.jsonl, and the record's quality")
    return EXIT_SAME


def config_of(record: Record, results: str | Path, logger: str | None = None) -> Config:
    """The record's configuration, in another results folder, and with another logger if one is
    named. RequestError where this version of the program cannot read it."""
    changed: dict[str, Any] = {"paths": {"results": str(results)}}
    if logger is not None:
        changed["logger"] = {"name": logger}
    try:
        return Config.model_validate({**record.config, **changed})
    except ValidationError as error:
        key = ".".join(map(str, error.errors()[0]["loc"]))
        raise RequestError(
            f"run {record.run_id}: {key}: this version of the program ({code_identity()['version']}) "
            f"cannot read the record's configuration; it was written by {record.code.get('version')}"
        ) from None


def _differences(
    record: Record, again: Record, old: list[dict[str, Any]], new: list[dict[str, Any]]
) -> Iterator[tuple[str, Any, Any]]:
    """Where the two runs differ, in the order in which it came about."""
    if record.run_id != again.run_id:
        yield "run_id", record.run_id, again.run_id
    for before, after in zip(old, new, strict=False):
        for key in sorted({*before, *after}):
            if before.get(key) != after.get(key):
                yield f"step {before['step']}, {key}", before.get(key), after.get(key)
    if len(old) != len(new):
        yield "rows of metrics.jsonl", len(old), len(new)
    before, after = record.quality.model_dump(), again.quality.model_dump()
    for key in before:
        if before[key] != after[key]:
            yield f"quality, {key}", before[key], after[key]


def _changed_since(record: Record, again: Record) -> Iterator[str]:
    """What is not as it was: the first places to look."""
    for name in ("code", "environment"):
        before, after = getattr(record, name), getattr(again, name)
        for key in sorted({*before, *after}):
            if before.get(key) != after.get(key):
                yield f"changed since: {name}.{key}: {before.get(key)} then, {after.get(key)} now"
