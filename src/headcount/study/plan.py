"""The plan: which points of a request become runs, and why the others do not."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headcount.config import Config
from headcount.errors import LayoutError, RequestError
from headcount.study.identity import run_id
from headcount.study.store import Study, write_atomically


@dataclass(frozen=True)
class Point:
    """One run of a plan: the overrides that ask for it and the configuration they resolve to."""

    overrides: tuple[str, ...]
    config: Config
    run_id: str


@dataclass
class Plan:
    """What a request comes to. `skipped` pairs a point's overrides with the reason."""

    points: list[Point] = field(default_factory=list)
    skipped: list[tuple[tuple[str, ...], str]] = field(default_factory=list)
    duplicates: list[tuple[tuple[str, ...], str]] = field(default_factory=list)

    @property
    def study(self) -> Study:
        return Study.of(self.points[0].config)

    @property
    def tokens(self) -> int:
        return sum(
            p.config.trainer.max_steps * p.config.task.batch_size * p.config.task.seq_len
            for p in self.points
        )

    def save(self) -> None:
        """Write plan.json; it names every point, so that `status` can tell what is missing."""
        import json

        self.study.folder.mkdir(parents=True, exist_ok=True)
        document: dict[str, Any] = {
            "study": self.study.name,
            "points": [
                {
                    "run_id": p.run_id,
                    "layout": p.config.layout.label,
                    "seed": p.config.seed,
                    "steps": p.config.trainer.max_steps,
                    "overrides": list(p.overrides),
                }
                for p in self.points
            ],
            "skipped": [{"overrides": list(o), "reason": r} for o, r in self.skipped],
            "duplicates": [{"overrides": list(o), "reason": r} for o, r in self.duplicates],
        }
        write_atomically(self.study.plan_path, json.dumps(document, indent=1))


def make_plan(
    requests: Iterable[Sequence[str]], compose: Callable[[Sequence[str]], Config]
) -> Plan:
    """Compose every request; drop layouts that cannot exist and points that are the same run.

    Raises RequestError where a request is wrong in itself, or where nothing is left to run.
    """
    plan = Plan()
    seen: dict[str, Point] = {}
    folders: set[Path] = set()
    for request in requests:
        overrides = tuple(request)
        try:
            config = compose(overrides)
        except LayoutError as error:
            plan.skipped.append((overrides, str(error)))
            continue
        folders.add(Study.of(config).folder)
        identity = run_id(config)
        if identity in seen:
            plan.duplicates.append((overrides, f"same as {' '.join(seen[identity].overrides)}"))
            continue
        seen[identity] = point = Point(overrides, config, identity)
        plan.points.append(point)
    if not plan.points:
        reason = plan.skipped[0][1] if plan.skipped else "the sweep has no points"
        raise RequestError(reason)
    if len(folders) > 1:
        raise RequestError("study and paths.results cannot be swept: one sweep is one study")
    return plan
