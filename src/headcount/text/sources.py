"""Documents out of files and data sets, one after another, whatever their size."""

import glob
import json
from collections.abc import Iterator
from pathlib import Path

from headcount.errors import RequestError
from headcount.task_config import HFText, TextFiles

BLOCK = 1 << 20
"""Bytes of a plain file in memory at once."""

TABLES = (".jsonl", ".parquet")
PLAIN = (".txt", ".md", ".text")


def find(path: str) -> list[Path]:
    """The files that `task.path` means: itself, a glob's matches, or a folder's known files; sorted.

    A file named outright may be called anything; what is no table is read as plain text."""
    root = Path(path).expanduser()
    if root.is_dir():
        found = [p for p in root.rglob("*") if p.suffix in (*TABLES, *PLAIN) and p.is_file()]
    elif root.is_file():
        found = [root]
    else:
        found = [Path(p) for p in glob.glob(str(root), recursive=True) if Path(p).is_file()]
    if not found:
        raise RequestError(
            f"task.path={path}: no such file, or nothing in it; valid: a file, a glob, or a folder "
            f"with files ending in {', '.join((*PLAIN, *TABLES))}"
        )
    return sorted(found)


def fingerprint(config: TextFiles | HFText) -> list[object]:
    """What changes when the source does: a data set's name, and files by path, size and time."""
    if isinstance(config, TextFiles):
        return _stats(find(config.path))
    named = [config.dataset, config.subset, config.data_files, config.split, config.max_documents]
    local = config.data_files or config.dataset
    return [*named, *_stats(find(local) if Path(local).exists() or glob.glob(local) else [])]


def _stats(paths: list[Path]) -> list[object]:
    stats = [(str(p.resolve()), p.stat()) for p in paths]
    return [(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats]


def documents(config: TextFiles | HFText) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Each document's origin, for messages, and its bytes in blocks."""
    if isinstance(config, HFText):
        yield from _of_dataset(config)
        return
    for path in find(config.path):
        if path.suffix == ".jsonl":
            yield from _of_jsonl(path, config.field)
        elif path.suffix == ".parquet":
            yield from _of_parquet(path, config.field)
        else:
            yield str(path), _blocks(path)


def _blocks(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            yield block


def _of_jsonl(path: Path, field: str) -> Iterator[tuple[str, Iterator[bytes]]]:
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            origin = f"{path}:{number}"
            try:
                row = json.loads(line)
            except ValueError:
                raise RequestError(f"task.path: {origin} is not JSON") from None
            if not isinstance(row, dict):
                raise RequestError(f"task.path: {origin} is not a JSON object")
            yield origin, iter([_text(row, field, origin)])


def _of_parquet(path: Path, field: str) -> Iterator[tuple[str, Iterator[bytes]]]:
    import polars as pl

    try:
        table = pl.scan_parquet(path)
        columns = table.collect_schema().names()
    except (pl.exceptions.PolarsError, OSError):
        raise RequestError(f"task.path: {path} is not a Parquet file") from None
    if field not in columns:
        raise RequestError(_no_field(field, columns, str(path)))
    number = 0
    for batch in table.select(field).collect_batches(chunk_size=1024):
        for text in batch[field].to_list():
            number += 1
            origin = f"{path}, row {number}"
            yield origin, iter([_text({field: text}, field, origin)])


def _of_dataset(config: HFText) -> Iterator[tuple[str, Iterator[bytes]]]:
    import datasets

    datasets.disable_progress_bars()
    try:
        rows = datasets.load_dataset(
            config.dataset,
            config.subset,
            data_files=config.data_files,
            split=config.split,
            streaming=config.streaming,
        )
    except Exception as error:  # the library raises its own, the network's and Python's
        reason = " ".join(str(error).split())
        raise RequestError(f"task.dataset={config.dataset}: {reason}") from None
    for number, row in enumerate(rows):
        if config.max_documents is not None and number >= config.max_documents:
            return
        origin = f"{config.dataset}, row {number + 1}"
        yield origin, iter([_text(row, config.field, origin)])


def _text(row: dict[str, object], field: str, origin: str) -> bytes:
    if field not in row:
        raise RequestError(_no_field(field, list(row), origin))
    value = row[field]
    if value is None:
        return b""
    if not isinstance(value, str):
        raise RequestError(
            f"task.field={field}: {origin} holds {type(value).__name__}, no text there"
        )
    return value.encode("utf-8", errors="surrogatepass")


def _no_field(field: str, columns: list[str], origin: str) -> str:
    return f"task.field={field}: {origin} has no such field; valid: {', '.join(columns)}"
