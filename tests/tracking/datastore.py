"""Reading an offline run's `.wandb` file: LevelDB's log framing around protobuf records."""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2 as pb

BLOCK, HEADER = 32 * 1024, 7
FULL, LAST = 1, 4


@dataclass
class Offline:
    """What stands in an offline run's file."""

    run: Any = None
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    """define_metric's definitions by name."""
    kinds: set[str] = field(default_factory=set)
    exit_code: int | None = None

    def series(self, key: str) -> dict[int, float]:
        """A metric's values by step; fails where a step stands twice."""
        rows = [(row["_step"], row[key]) for row in self.history if key in row]
        assert len(dict(rows)) == len(rows), "a step stands twice"
        return dict(rows)


def offline_file(run_folder: Path) -> Path:
    """The one `.wandb` file of a run; fails where there are more, or none."""
    [found] = (run_folder / "wandb").glob("offline-run-*/run-*.wandb")
    return found


def read(run_folder: Path) -> Offline:
    found = Offline()
    for record in _records(offline_file(run_folder).read_bytes()):
        kind = record.WhichOneof("record_type")
        found.kinds.add(kind)
        if kind == "run":
            found.run = record.run
            found.config |= _items(record.run.config.update)
        elif kind == "config":
            found.config |= _items(record.config.update)
        elif kind == "history":
            found.history.append(_items(record.history.item))
        elif kind == "summary":
            found.summary |= _items(record.summary.update)
        elif kind == "metric":
            found.metrics[record.metric.name] = record.metric
        elif kind == "exit":
            found.exit_code = record.exit.exit_code
    return found


def _items(items: Any) -> dict[str, Any]:
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}


def _records(data: bytes) -> Iterator[pb.Record]:
    position, whole = HEADER, b""
    while position < len(data):
        left = BLOCK - position % BLOCK
        if left < HEADER:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + HEADER])
        position += HEADER
        whole += data[position : position + length]
        position += length
        if kind in (FULL, LAST):
            record = pb.Record()
            record.ParseFromString(whole)
            yield record
            whole = b""
