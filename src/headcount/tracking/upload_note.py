"""What of a run has been uploaded: a note beside its files, so that a later `sync` passes it by."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from headcount.study.records import Record
from headcount.study.store import write_atomically
from headcount.tracking import connection


@dataclass(frozen=True)
class UploadNote:
    """Where a run goes, and the note that says how far it has been uploaded there."""

    folder: Path
    server: str
    project: str
    entity: str | None

    @classmethod
    def of(cls, folder: Path, project: str, entity: str | None) -> "UploadNote":
        return cls(folder, connection.server(), project, entity)

    def write(self, record: Record) -> None:
        """Note that W&B holds the run as its files are now."""
        write_atomically(self._path, json.dumps(self._content(record), indent=1))

    def holds(self, record: Record) -> bool:
        """Whether the files are still those that were uploaded there."""
        return self._path.exists() and json.loads(self._path.read_text()) == self._content(record)

    @property
    def _path(self) -> Path:
        return self.folder / "wandb" / "uploaded.json"

    def _content(self, record: Record) -> dict[str, str | None]:
        digest = hashlib.sha256(record.model_dump_json(by_alias=True).encode())
        for path in [self.folder / "metrics.jsonl", *sorted((self.folder / "heads").glob("*.png"))]:
            digest.update(path.read_bytes() if path.exists() else b"")
        return {
            "server": self.server,
            "project": self.project,
            "entity": self.entity,
            "files_sha256": digest.hexdigest(),
        }
