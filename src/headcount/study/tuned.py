"""A learning rate for each layout: seeds of their own choose it, fresh seeds report at it.

    points asked for ──► each layout × rates × selection seeds ──► its rate ──► the points, at that rate

The second step follows from the records of the first, so the plan grows while it is carried out. A rate
is the optimum that the report shows (`analysis.tuning.sensitivity`), to two digits, so that the same
records give the same runs on every host.
"""

from collections import defaultdict
from dataclasses import dataclass, field

from headcount.analysis.tuning import sensitivity
from headcount.config import Tuned
from headcount.errors import RequestError
from headcount.study.identity import run_id
from headcount.study.plan import Plan, Point, part
from headcount.study.store import Study


@dataclass
class Group:
    """Points that differ in nothing but the seed: one layout in one setting."""

    label: str
    selection: list[Point]
    reports: list[Point]
    """At the request's own rate until one is chosen."""
    rate: float | None = None

    @property
    def points(self) -> list[Point]:
        return self.selection + (self.reports if self.rate is not None else [])


@dataclass
class TunedPlan(Plan):
    """A plan that tunes first. Shards are of layouts, so that none waits for another's choice."""

    groups: list[Group] = field(default_factory=list)

    @classmethod
    def of(cls, plan: Plan, protocol: Tuned) -> "TunedPlan":
        """Tune what a plan asks for; RequestError for a seed that would choose and report, and for a
        learning rate that is swept."""
        seeds = {p.config.seed for p in plan.points}
        both = sorted(seeds & set(protocol.seeds))
        if both:
            raise RequestError(
                f"protocol.seeds={protocol.seeds}: {both[0]} is a seed that reports; valid: others than "
                f"seed={','.join(map(str, sorted(seeds)))}"
            )
        by_setting: dict[str, list[Point]] = defaultdict(list)
        for point in plan.points:
            by_setting[_at(point, 0, 1.0).run_id].append(point)
        groups = []
        for reports in by_setting.values():
            rates = sorted({p.config.optim.lr for p in reports})
            if len(rates) > 1:
                raise RequestError(
                    f"optim.lr={','.join(f'{lr:g}' for lr in rates)}: swept with protocol=tuned, which "
                    "chooses it; valid: one value, and protocol.lr_factors"
                )
            tried = [float(f"{rates[0] * factor:.6g}") for factor in sorted(protocol.lr_factors)]
            selection = [_at(reports[0], s, lr) for lr in tried for s in protocol.seeds]
            groups.append(Group(reports[0].config.layout.label, selection, reports))
        return cls(
            [p for g in groups for p in g.selection],
            plan.skipped,
            plan.duplicates,
            selection_seeds=protocol.seeds,
            groups=groups,
        )

    def shard(self, shard: str | None) -> list[Point]:
        return [p for group in part(self.groups, shard) for p in group.points]

    @property
    def pending(self) -> int:
        return sum(len(g.reports) for g in self.groups if g.rate is None)

    def grow(self) -> list[str]:
        study = self.study
        said = []
        for group in self.groups:
            if group.rate is None and (line := _choose(group, study)):
                said.append(line)
        self.points = [p for g in self.groups for p in g.points]
        return said


def _choose(group: Group, study: Study) -> str:
    """Give a group its rate once its selection is over, and say which; empty as long as it is not.

    A run that diverged has answered; one that failed or was interrupted has not.
    """
    records = [r for p in group.selection if (r := study.record(p.run_id)) is not None]
    over = [r for r in records if r.status in ("completed", "diverged")]
    if len(over) < len(group.selection):
        return ""
    found = sensitivity(over)
    if found is None:
        return ""
    group.rate = float(f"{found.optimum:.2g}")
    group.reports = [_at(p, p.config.seed, group.rate) for p in group.reports]
    line = f"{group.label}: lr {group.rate:g}, of {found.rates[0]:g} to {found.rates[-1]:g}"
    if found.on_edge:
        line += "; on the edge: a better one may lie beyond (protocol.lr_factors)"
    return line


def _at(point: Point, seed: int, lr: float) -> Point:
    """The point with another seed and learning rate."""
    config = point.config
    optim = config.optim.model_copy(update={"lr": lr})
    config = config.model_copy(update={"seed": seed, "optim": optim})
    kept = [o for o in point.overrides if o.partition("=")[0] not in ("seed", "optim.lr")]
    return Point((*kept, f"optim.lr={lr:g}", f"seed={seed}"), config, run_id(config))
