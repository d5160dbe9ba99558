"""The plan: which points of a request become runs, and why the others do not."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from headcount.config import Config
from headcount.errors import CombinationError, RequestError
from headcount.measure.protocol import cost_id
from headcount.study.estimate import Estimate, train_flops
from headcount.study.identity import run_id
from headcount.study.store import Study, write_atomically

WAVES = ("cost", "training")

Item = TypeVar("Item")

LAYOUT_KEYS = {"attention", "control"} | {
    f"model.{key}" for key in ("attention", "n_heads", "n_kv_heads", "kv_group_size", "d_head")
}
"""Several of these name the same layout; a sweep over them may meet it twice, which is a duplicate.
Any other axis along which nothing changes is a mistake."""


@dataclass(frozen=True)
class Point:
    """One run of a plan: the overrides that ask for it and the configuration they resolve to."""

    overrides: tuple[str, ...]
    config: Config
    run_id: str


@dataclass
class Plan:
    """What a request comes to, dearest run first, so that the last worker is not left with it and
    what does not fit fails early. `skipped` pairs a point's overrides with the reason, `duplicates`
    with the overrides of the point that is the same run."""

    points: list[Point] = field(default_factory=list)
    skipped: list[tuple[tuple[str, ...], str]] = field(default_factory=list)
    duplicates: list[tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=list)
    selection_seeds: list[int] = field(default_factory=list)
    """Seeds whose runs choose learning rates and report nothing."""

    @property
    def study(self) -> Study:
        return Study.of(self.points[0].config)

    def swept(self, overrides: Sequence[str]) -> str:
        """What sets a point apart: its overrides without those that all points have."""
        return " ".join(o for o in overrides if o not in self._common)

    @cached_property
    def _common(self) -> set[str]:
        left_out = (overrides for overrides, _ in [*self.skipped, *self.duplicates])
        return set.intersection(*map(set, (*(p.overrides for p in self.points), *left_out)))

    def shard(self, shard: str | None) -> list[Point]:
        """The points of one part of several, `2/8`: every eighth from the second, so that each part
        costs about the same."""
        return part(self.points, shard)

    @property
    def pending(self) -> int:
        """Points that will follow from what runs first."""
        return 0

    def grow(self) -> list[str]:
        """Take up the points that follow from what has run, and say so, a line each."""
        return []

    def save(self, estimate: Estimate) -> None:
        """Write plan.json; it names every point, so that `status` can tell what is missing."""
        document: dict[str, Any] = {
            "study": self.study.name,
            "selection_seeds": self.selection_seeds,
            "estimate": estimate.as_dict(),
            "points": [
                {
                    "run_id": p.run_id,
                    "layout": p.config.layout.label,
                    "seed": p.config.seed,
                    "steps": p.config.trainer.max_steps,
                    "overrides": p.overrides,
                }
                for p in self.points
            ],
            "skipped": [{"overrides": o, "reason": r} for o, r in self.skipped],
            "duplicates": [{"overrides": o, "same_as": s} for o, s in self.duplicates],
        }
        write_atomically(self.study.plan_path, json.dumps(document, indent=1))


def part(items: list[Item], shard: str | None) -> list[Item]:
    """Every eighth of a list from the second, for `2/8`; all of it for None."""
    if shard is None:
        return items
    place, parts = map(int, shard.split("/"))
    return items[place - 1 :: parts]


def make_plan(
    requests: Iterable[Sequence[str]],
    compose: Callable[[Sequence[str]], Config],
    waves: Sequence[str] = WAVES,
) -> Plan:
    """Compose every request; drop combinations that cannot exist and points that are the same run
    (where nothing is trained: that cost the same).

    Raises RequestError where a request is wrong in itself, or where nothing is left to run.
    """
    plan = Plan()
    identify = run_id if "training" in waves else cost_id
    seen: dict[str, Point] = {}
    asked: list[tuple[tuple[str, ...], str]] = []
    studies: set[tuple[str, str]] = set()
    for request in requests:
        overrides = tuple(request)
        try:
            config = compose(overrides)
        except CombinationError as error:
            plan.skipped.append((overrides, str(error)))
            continue
        studies.add((config.paths.results, config.study))
        identity = identify(config)
        asked.append((overrides, identity))
        if identity in seen:
            plan.duplicates.append((overrides, seen[identity].overrides))
            continue
        own = identity if identify is run_id else run_id(config)
        seen[identity] = point = Point(overrides, config, own)
        plan.points.append(point)
    if not plan.points:
        raise RequestError(plan.skipped[0][1] if plan.skipped else "the sweep has no points")
    if len(studies) > 1:
        raise RequestError("study and paths.results cannot be swept: one sweep is one study")
    if "training" in waves:
        _refuse_idle_axes(asked)
    plan.points.sort(key=lambda p: train_flops(p.config), reverse=True)
    return plan


def _refuse_idle_axes(asked: Sequence[tuple[tuple[str, ...], str]]) -> None:
    """Raise RequestError for an axis whose values never make another run, all else equal: whoever
    sweeps it would read a finding from identical models."""
    keys = {o: o.partition("=")[0].lstrip("+~") for overrides, _ in asked for o in overrides}
    values: dict[str, set[str]] = {}
    for override, key in keys.items():
        values.setdefault(key, set()).add(override)
    for key in (k for k, v in values.items() if len(v) > 1 and k not in LAYOUT_KEYS):
        alike: dict[tuple[str, ...], list[str]] = {}
        for overrides, identity in asked:
            rest = tuple(o for o in overrides if keys[o] != key)
            if len(rest) < len(overrides):
                alike.setdefault(rest, []).append(identity)
        compared = [ids for ids in alike.values() if len(ids) > 1]
        if compared and all(len(set(ids)) == 1 for ids in compared):
            swept = ",".join(sorted(o.partition("=")[2] for o in values[key]))
            raise RequestError(
                f"{key}={swept}: the axis changes no run: all its values give the same model and "
                "training; leave it out of the sweep, or sweep a key that is read"
            )
