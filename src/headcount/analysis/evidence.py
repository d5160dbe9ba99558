"""A study's records as tables: one row a run, and one `Arm` a layout with its runs over seeds."""

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from headcount.analysis.arms import (
    Arm,
    Metric,
    accuracy_metric,
    arm_key,
    grouping,
    loss_metric,
)
from headcount.analysis.cautions import warnings_of
from headcount.analysis.conditions import conditions, scientific
from headcount.analysis.joining import every_cost, fitting_costs, one_setup
from headcount.analysis.tuning import rate_of, reported_runs, seed_of, sensitivity
from headcount.study.records import Cost, Record
from headcount.study.store import Study


@dataclass(frozen=True)
class Evidence:
    """Everything that the records of one study say."""

    study: Study
    records: list[Record]
    runs: pl.DataFrame
    """One row a run: run_id, study, status, seed, label, condition, lr and the pinned keys."""
    metrics: dict[str, Metric]
    """What quality means, by condition."""
    arms: list[Arm]
    """Ordered by condition, KV grouping and number of heads."""
    costs: list[Cost]
    """Every cost record, whether or not a run uses it."""
    warnings: list[str] = field(default_factory=list)

    @property
    def conditions(self) -> list[str]:
        """The conditions, the one with most completed runs first."""
        completed = Counter({arm.condition: 0 for arm in self.arms})
        for arm in self.arms:
            completed[arm.condition] += len(arm.seeds)
        return [condition for condition, _ in completed.most_common()]

    def metric_of(self, condition: str) -> Metric:
        """What quality means in a condition; in a study without any run, test loss in nats."""
        return self.metrics.get(condition) or loss_metric("test_loss", "nats")

    def arms_of(self, condition: str) -> list[Arm]:
        return [arm for arm in self.arms if arm.condition == condition]

    @cached_property
    def cost_setup(self) -> str:
        """Where the latencies come from: `context 512, batch 1, fp32, CPU X, kernel sdpa`."""
        found = [(arm.cost, arm.decode) for arm in self.arms]
        measured = [(cost, point) for cost, point in found if cost and point]
        if not measured:
            return ""
        cost, point = measured[0]
        kernels = sorted({p.kernel for _, p in measured})
        return (
            f"context {point.context:,}, batch {point.batch_size}, {cost.dtype}, {cost.device}, "
            f"kernel {' / '.join(kernels)}"
        )


def load(study: Study) -> Evidence:
    """Read every record of the study; one that is damaged is left out, with a warning."""
    damaged: dict[Path, str] = {}
    records = list(study.records(damaged))
    flat = {record.run_id: scientific(record.config) for record in records}
    condition, tied = conditions(records, flat)
    known = every_cost(study, records, damaged)
    fitting = fitting_costs(records, known)
    costs, left_out = one_setup(records, fitting)
    by_condition: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_condition[condition[record.run_id]].append(record)
    metrics = {where: _metric(members) for where, members in by_condition.items()}
    arms = _arms(records, condition, costs, fitting, metrics, study.selection_seeds())
    return Evidence(
        study=study,
        records=records,
        runs=_frame(records, condition, costs),
        metrics=metrics,
        arms=arms,
        costs=known,
        warnings=[
            *(f"left out: {reason}" for reason in damaged.values()),
            *warnings_of(records, arms, condition, flat, tied),
            *left_out,
        ],
    )


def _metric(members: list[Record]) -> Metric:
    """Of one condition: accuracy where every completed run has one, else the test loss, else the
    validation loss. A condition has one task, so its losses have one unit."""
    completed = [r.quality for r in members if r.status == "completed"]
    unit = next((q.loss_unit for q in completed), "nats")
    if completed and all(q.test_accuracy is not None for q in completed):
        return accuracy_metric(unit)
    if any(q.test_loss is not None for q in completed) or not completed:
        return loss_metric("test_loss", unit)
    return loss_metric("val_loss", unit)


def value_of(record: Record, metric: Metric) -> float | None:
    """The metric of a run; None where it has none, or what stands there is no number."""
    value: float | None = getattr(record.quality, metric.key.removeprefix("quality/"))
    return value if value is not None and isfinite(value) else None


def _frame(
    records: list[Record], condition: dict[str, str], costs: dict[str, Cost]
) -> pl.DataFrame:
    rows = []
    for record in records:
        joined = costs.get(record.run_id)
        rows.append(
            {
                "run_id": record.run_id,
                "study": record.study,
                "status": record.status,
                "seed": seed_of(record),
                "label": record.layout.label,
                "condition": condition[record.run_id],
                "lr": rate_of(record),
                "layout/d_model": record.layout.d_model,
                "quality/loss_unit": record.quality.loss_unit,
                **record.headline(),
                **(joined.headline() if joined else {}),
            }
        )
    if not rows:
        return pl.DataFrame(
            {"run_id": [], "status": []}, schema={"run_id": pl.String, "status": pl.String}
        )
    names = sorted({name for row in rows for name in row}, key=_column_order)
    return pl.DataFrame(rows, infer_schema_length=None).select(names)


_SECTIONS = ("layout", "quality", "latency", "memory", "kv_cache", "compute", "training")
_FIRST = ("run_id", "study", "status", "seed", "label", "condition", "lr")


def _column_order(name: str) -> tuple[int, int, str]:
    """Columns as people read them: who, what, how good, at what cost."""
    if name in _FIRST:
        return 0, _FIRST.index(name), ""
    section = name.split("/")[0]
    return 1, _SECTIONS.index(section), ("~" if "/slice/" in name else "") + name


def _arms(
    records: list[Record],
    condition: dict[str, str],
    costs: dict[str, Cost],
    fitting: dict[str, list[Cost]],
    metrics: dict[str, Metric],
    selecting: set[int],
) -> list[Arm]:
    groups: dict[tuple[str, Any], list[Record]] = defaultdict(list)
    for record in records:
        groups[condition[record.run_id], arm_key(record.layout)].append(record)
    by_id = {r.run_id: r for r in records}
    arms = []
    for (where, _), members in groups.items():
        reported, lr, choice = reported_runs(members, selecting)
        good = sorted(
            (
                (seed_of(r), value, r.run_id)
                for r in reported
                if r.status == "completed" and (value := value_of(r, metrics[where])) is not None
            ),
        )
        arms.append(
            Arm(
                layout=members[0].layout,
                condition=where,
                lr=lr,
                seeds=tuple(seed for seed, _, _ in good),
                values=np.array([value for _, value, _ in good], dtype=float),
                run_ids=tuple(run_id for _, _, run_id in good),
                statuses=dict(Counter(str(r.status) for r in reported)),
                cost=next((costs[r.run_id] for r in members if r.run_id in costs), None),
                costs=tuple({c.cost_id: c for r in members for c in fitting[r.run_id]}.values()),
                lr_choice=choice,
                sensitivity=sensitivity(members, selecting),
                slices=_slices([by_id[run_id] for _, _, run_id in good]),
            )
        )
    return sorted(
        arms,
        key=lambda a: (
            _natural(a.condition),
            grouping(a.layout),
            a.layout.n_heads,
            a.layout.d_head,
            a.layout.d_latent,
            a.layout.d_rope,
        ),
    )


def _natural(text: str) -> list[tuple[int, str]]:
    """A sort key that puts `d_model 64` before `d_model 128`."""
    return [(int(p), "") if p.isdigit() else (0, p) for p in re.split(r"(\d+)", text)]


def _slices(runs: list[Record]) -> dict[str, NDArray[np.float64]]:
    """Loss by slice over the runs of an arm; only slices that every run has."""
    names = [
        n
        for n in (runs[0].quality.slices if runs else ())
        if all(n in r.quality.slices for r in runs)
    ]
    return {n: np.array([r.quality.slices[n].loss for r in runs], dtype=float) for n in names}
