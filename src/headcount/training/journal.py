"""metrics.jsonl: every step's figures, in a plain file that is complete without any account."""

import json
import math
from pathlib import Path
from typing import Any

from headcount.study.store import write_atomically


class Journal:
    """Rows by step. Rows wait in memory until `flush`, which makes them durable in one write."""

    def __init__(self, path: Path, last_step: int) -> None:
        """Open for a run that stands at `last_step`; rows of later steps, which a killed run wrote
        after its last checkpoint, are dropped, so that no step stands twice."""
        self.path = path
        self.waiting: list[dict[str, Any]] = []
        rows = [row for row in read_rows(path) if row["step"] <= last_step]
        write_atomically(path, "".join(map(_line, rows)))

    def write(self, row: dict[str, Any]) -> None:
        self.waiting.append(row)

    def flush(self) -> list[dict[str, Any]]:
        """Append what waits; return it."""
        rows, self.waiting = self.waiting, []
        with open(self.path, "a", encoding="utf-8") as file:
            file.write("".join(map(_line, rows)))
        return rows


def read_rows(path: Path) -> list[dict[str, Any]]:
    """All whole rows; a last line torn by a kill is left out."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def _line(row: dict[str, Any]) -> str:
    # JSON has no infinity or NaN; a diverged loss is written as null.
    plain = {
        k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()
    }
    return json.dumps(plain) + "\n"
