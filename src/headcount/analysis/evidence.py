"""A study's records as tables: one row a run, and one `Arm` a layout with its runs over seeds.

Arms are the things compared. A study may vary more than the layout (width, task, context, control):
each combination of those is a *condition*, and arms are compared within one condition only.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from headcount.analysis.words import listed
from headcount.study.records import Cost, Layout, Point, Record
from headcount.study.store import Study

# The sections of a configuration that decide a result, less what only says how it is computed.
SCIENTIFIC = ("model", "task", "control", "optim", "trainer")
OPERATIONAL = {
    "trainer.accelerator",
    "trainer.devices",
    "trainer.strategy",
    "trainer.threads",
    "task.eval_batch_size",
}
# What a layout is made of, so that these never make a condition.
OF_LAYOUT = {
    "model.attention",
    "model.n_heads",
    "model.n_kv_heads",
    "model.kv_group_size",
    "model.d_head",
}
LEARNING_RATE = "optim.lr"
NOT_COMPLETED = ("diverged", "failed", "interrupted", "running")


LRChoice = Literal["given", "tuned", "same seeds"]
"""Where an arm's learning rate is from: its runs have one; it was chosen among several on other
seeds than those reported; or on the very seeds reported."""


@dataclass(frozen=True)
class Metric:
    """What quality means in a study."""

    key: str
    """The pinned key, `quality/test_loss`."""
    name: str
    unit: str
    """Empty for a fraction."""
    sign: Literal[1, -1]
    """+1 where lower is better, −1 where higher is: `sign * value` is minimised."""
    margin: float
    """The default equivalence margin: differences below it do not matter."""
    margin_reason: str

    @property
    def axis(self) -> str:
        """The label of an axis: name, unit and which way is better."""
        unit = f" ({self.unit})" if self.unit else ""
        return f"{self.name.capitalize()}{unit}, {'lower' if self.sign > 0 else 'higher'} is better"


# 0.01 nats is one per cent of perplexity. The smallest differences between layouts that papers call
# real are larger (MHA to MQA: 0.015 nats in Shazeer 2019, 0.021 for GQA-4 in Zadouri 2025), and
# repeats of one GPT-2-size run differ less (sd 0.0019).
_NATS = "0.01 nats is 1% of perplexity, below the differences between layouts that papers report"
TEST_LOSS = Metric("quality/test_loss", "test loss", "nats", 1, 0.01, _NATS)
VAL_LOSS = Metric("quality/val_loss", "validation loss", "nats", 1, 0.01, _NATS)
TEST_ACCURACY = Metric(
    "quality/test_accuracy", "test accuracy", "", -1, 0.01, "0.01 is one answer in a hundred"
)


@dataclass(frozen=True)
class Arm:
    """One layout under one condition: its completed runs, one value a seed, and its cost."""

    layout: Layout
    condition: str
    lr: float | None
    seeds: tuple[int, ...]
    """Seeds with a completed run, ascending."""
    values: NDArray[np.float64]
    """The metric of those runs, (len(seeds),)."""
    run_ids: tuple[str, ...]
    """Of those runs."""
    statuses: dict[str, int]
    """All its runs by status."""
    cost: Cost | None
    """Measured in the set-up that the study's figures share."""
    costs: tuple[Cost, ...] = ()
    """Every cost record of this layout, whatever the device, dtype and grid."""
    lr_choice: LRChoice = "given"

    @property
    def label(self) -> str:
        return self.layout.label

    @property
    def mean(self) -> float:
        return float(self.values.mean()) if len(self.values) else float("nan")

    @cached_property
    def by_seed(self) -> dict[int, float]:
        return dict(zip(self.seeds, self.values.tolist(), strict=True))

    @property
    def decode(self) -> Point | None:
        """The decode step at the protocol's headline context and batch."""
        if self.cost is None:
            return None
        protocol = self.cost.protocol
        return self.cost.point(
            "decode", protocol["headline_context"], protocol["headline_batch_size"]
        )

    @property
    def decode_ms(self) -> float:
        """Median milliseconds a decode step; NaN where it was not measured."""
        return self.decode.p50_ms if self.decode else float("nan")

    @property
    def kv_bytes(self) -> float:
        """KV-cache bytes a token of one sequence; NaN where it was not measured."""
        return float(self.cost.kv_cache.bytes_per_token) if self.cost else float("nan")

    @property
    def n_params(self) -> int | None:
        return self.cost.compute.n_params if self.cost else None


@dataclass(frozen=True)
class Evidence:
    """Everything that the records of one study say."""

    study: Study
    records: list[Record]
    runs: pl.DataFrame
    """One row a run: run_id, study, status, seed, label, condition, lr and the pinned keys."""
    metric: Metric
    arms: list[Arm]
    """Ordered by condition, KV grouping and number of heads."""
    costs: list[Cost]
    """Every cost record, whether or not a run uses it."""
    shared_lr: bool
    """Every layout was trained at the same learning rate."""
    warnings: list[str] = field(default_factory=list)

    @property
    def conditions(self) -> list[str]:
        """The conditions, the one with most completed runs first."""
        completed = Counter({arm.condition: 0 for arm in self.arms})
        for arm in self.arms:
            completed[arm.condition] += len(arm.seeds)
        return [condition for condition, _ in completed.most_common()]

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


def grouping(layout: Layout) -> tuple[int, str]:
    """How query heads share KV heads, as a sort key and a name; each is one line of a figure.

    One head is MHA's first point. GQA goes by query heads per KV head, which is the knob that
    `attention=gqa` has.
    """
    if layout.kind in ("single", "mha"):
        return 0, "MHA"
    if layout.kind == "gqa":
        size = layout.n_heads // layout.n_kv_heads
        return size, f"GQA, {size} query heads per KV head"
    return 10**9, layout.kind.upper()


def load(study: Study) -> Evidence:
    """Read every record of the study."""
    records = list(study.records())
    flat = {record.run_id: _scientific(record.config) for record in records}
    keys, tied = _condition_keys(records, flat)
    condition = {
        run_id: ", ".join(f"{_short(key)} {values.get(key)}" for key in keys)
        for run_id, values in flat.items()
    }
    known = _every_cost(study, records)
    fitting = _fitting_costs(records, known)
    costs, warnings = _one_setup(records, fitting)
    metric = _metric(records)
    runs = _frame(records, condition, costs)
    arms = _arms(records, condition, costs, fitting, metric)
    lrs = {flat[r.run_id].get(LEARNING_RATE) for r in records}
    return Evidence(
        study=study,
        records=records,
        runs=runs,
        metric=metric,
        arms=arms,
        costs=known,
        shared_lr=len(lrs) <= 1,
        warnings=[
            *_run_warnings(records),
            *_arm_warnings(arms),
            *_budget_warnings(records, condition),
            *_lr_warnings(arms),
            *_tied_warnings(tied, flat),
            *_code_warnings(records),
            *warnings,
            *_cost_warnings(arms),
            *_parameter_warnings(arms),
        ],
    )


# -- the configuration ---------------------------------------------------------------------------


def flatten(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested configuration to dotted keys; lists become their text."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = str(value) if isinstance(value, list) else value
    return flat


def _scientific(config: dict[str, Any]) -> dict[str, Any]:
    """The flat keys that decide a result, apart from the layout's own."""
    flat = flatten({name: config[name] for name in SCIENTIFIC if name in config})
    return {k: v for k, v in flat.items() if k not in OPERATIONAL and k not in OF_LAYOUT}


def _condition_keys(
    records: list[Record], flat: dict[str, dict[str, Any]]
) -> tuple[list[str], list[str]]:
    """The fewest keys that tell the conditions apart, and the keys that go along with the layout.

    A key that is the same in all runs of each layout cannot be told from the layout's effect: it is
    no condition but part of the layout (a d_ff widened to match parameters), or a confound.
    """
    layouts = [_shape_key(r.layout) for r in records]
    columns = {
        key: [flat[r.run_id].get(key) for r in records]
        for key in sorted({key for values in flat.values() for key in values})
        if key != LEARNING_RATE
    }
    varying = {key: column for key, column in columns.items() if len(set(column)) > 1}
    first = ("task.name", "control.name", "model.d_model")
    order = [k for k in first if k in varying] + [k for k in varying if k not in first]
    tied = [k for k in order if k != "model.d_model" and _follows(varying[k], layouts)]
    keys: list[str] = []
    for key in order:
        chosen = list(zip(*(varying[k] for k in keys), strict=True)) or [()] * len(records)
        if key not in tied and not _follows(varying[key], chosen):
            keys.append(key)
    # What follows from the conditions is no confound (a task's own batch size).
    chosen = list(zip(*(varying[k] for k in keys), strict=True)) or [()] * len(records)
    return keys, [k for k in tied if not _follows(varying[k], chosen)]


def _follows(column: list[Any], groups: Iterable[Any]) -> bool:
    """Whether a column has one value in each group."""
    value: dict[Any, Any] = {}
    return all(value.setdefault(g, v) == v for g, v in zip(groups, column, strict=True))


def _short(key: str) -> str:
    """A key as a person says it: `task.name` is the task, `model.d_model` d_model."""
    section, _, leaf = key.partition(".")
    return section if leaf == "name" else leaf


def _shape_key(layout: Layout) -> tuple[int, int, int, int, str]:
    return layout.d_model, layout.n_heads, layout.n_kv_heads, layout.d_head, layout.kind


def _lr(record: Record) -> float | None:
    lr = record.config.get("optim", {}).get("lr")
    return None if lr is None else float(lr)


def seed_of(record: Record) -> int:
    return int(record.config.get("seed", 0))


# -- costs ---------------------------------------------------------------------------------------


def _every_cost(study: Study, records: list[Record]) -> list[Cost]:
    """Cost records of the study's folder, and those that only a run's record still holds."""
    found = {cost.cost_id: cost for cost in study.cost_records()}
    for record in records:
        if record.cost:
            found.setdefault(record.cost.cost_id, record.cost)
    return list(found.values())


def _setup(cost: Cost) -> tuple[Any, ...]:
    """What latencies must share to be compared."""
    protocol = cost.protocol
    return (
        cost.device,
        cost.dtype,
        protocol.get("headline_context"),
        protocol.get("headline_batch_size"),
    )


def _fitting_costs(records: list[Record], costs: list[Cost]) -> dict[str, list[Cost]]:
    """For each run the cost records of its layout and model shape, its own among them."""
    by_layout = defaultdict(list)
    for cost in costs:
        by_layout[_shape_key(cost.layout)].append(cost)
    fitting: dict[str, list[Cost]] = {}
    found: dict[Any, list[Cost]] = {}
    for record in records:
        model = record.config.get("model", {})
        own = record.cost.cost_id if record.cost else None
        key = own, _shape_key(record.layout), tuple(sorted((k, str(v)) for k, v in model.items()))
        if key not in found:
            # A record that names its cost is not joined with another task's of the same set-up.
            found[key] = [
                c
                for c in by_layout[_shape_key(record.layout)]
                if c.cost_id == own
                or (
                    all(c.shape.get(k, v) == v for k, v in model.items())
                    and (record.cost is None or _setup(c) != _setup(record.cost))
                )
            ]
        fitting[record.run_id] = found[key]
    return fitting


def _one_setup(
    records: list[Record], fitting: dict[str, list[Cost]]
) -> tuple[dict[str, Cost], list[str]]:
    """Each run's cost record, all from one device, dtype, context and batch; newest measurement.

    Where a study was measured in several set-ups, the one that covers most layouts is shown.
    """
    layouts_in: dict[tuple[Any, ...], set[Any]] = defaultdict(set)
    newest: dict[tuple[Any, ...], str] = defaultdict(str)
    for record in records:
        for cost in fitting[record.run_id]:
            layouts_in[_setup(cost)].add(_shape_key(record.layout))
            newest[_setup(cost)] = max(newest[_setup(cost)], cost.measured)
    if not layouts_in:
        return {}, []
    shown = max(layouts_in, key=lambda s: (len(layouts_in[s]), newest[s]))
    joined: dict[str, Cost] = {}
    left_out = set()
    for record in records:
        fits = [c for c in fitting[record.run_id] if _setup(c) == shown]
        if fits:
            joined[record.run_id] = max(fits, key=lambda c: c.measured)
        elif fitting[record.run_id]:
            left_out.add(record.layout.label)
    warnings = []
    if len(layouts_in) > 1:
        others = "; ".join(_setup_words(s) for s in layouts_in if s != shown)
        text = f"costs shown are from {_setup_words(shown)}; also measured, not mixed in: {others}"
        if left_out:
            text += f"; so without latency here: {listed(sorted(left_out))}"
        warnings.append(text)
    return joined, warnings


def _setup_words(setup: tuple[Any, ...]) -> str:
    device, dtype, context, batch = setup
    return f"{device}, {dtype}, context {context}, batch {batch}"


# -- runs and arms -------------------------------------------------------------------------------


def _metric(records: list[Record]) -> Metric:
    """Accuracy where every completed run has one, else the test loss, else the validation loss."""
    completed = [r.quality for r in records if r.status == "completed"]
    if completed and all(q.test_accuracy is not None for q in completed):
        return TEST_ACCURACY
    if any(q.test_loss is not None for q in completed) or not completed:
        return TEST_LOSS
    return VAL_LOSS


def value_of(record: Record, metric: Metric) -> float | None:
    """The metric of a run."""
    value: float | None = getattr(record.quality, metric.key.removeprefix("quality/"))
    return value


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
                "lr": _lr(record),
                "layout/d_model": record.layout.d_model,
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
    metric: Metric,
) -> list[Arm]:
    groups: dict[tuple[str, Any], list[Record]] = defaultdict(list)
    for record in records:
        groups[condition[record.run_id], _shape_key(record.layout)].append(record)
    arms = []
    for (where, _), members in groups.items():
        reported, lr, choice = reported_runs(members)
        good = sorted(
            (
                (seed_of(r), value, r.run_id)
                for r in reported
                if r.status == "completed" and (value := value_of(r, metric)) is not None
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
                statuses=dict(Counter(str(r.status) for r in members)),
                cost=next((costs[r.run_id] for r in members if r.run_id in costs), None),
                costs=tuple({c.cost_id: c for r in members for c in fitting[r.run_id]}.values()),
                lr_choice=choice,
            )
        )
    return sorted(
        arms, key=lambda a: (a.condition, grouping(a.layout), a.layout.n_heads, a.layout.d_head)
    )


def reported_runs(members: list[Record]) -> tuple[list[Record], float | None, LRChoice]:
    """The runs of one layout that are reported, their learning rate, and whether it was chosen.

    Seeds that ran at several learning rates selected one; seeds that ran at a single rate report.
    Where no seed is left to report on, the rate with the best mean validation loss is reported on
    the very seeds that chose it, which flatters it: `_lr_warnings` says so.
    """
    by_seed: dict[int, set[float | None]] = defaultdict(set)
    for record in members:
        by_seed[seed_of(record)].add(_lr(record))
    rates = {lr for found in by_seed.values() for lr in found}
    if len(rates) <= 1:
        return members, next(iter(rates), None), "given"
    fresh = [r for r in members if len(by_seed[seed_of(r)]) == 1]
    if fresh:
        lr = Counter(_lr(r) for r in fresh).most_common(1)[0][0]
        return [r for r in fresh if _lr(r) == lr], lr, "tuned"
    losses: dict[float | None, list[float]] = defaultdict(list)
    for record in members:
        if record.status == "completed" and record.quality.val_loss is not None:
            losses[_lr(record)].append(record.quality.val_loss)
    if not losses:
        return members, None, "given"
    lr = min(losses, key=lambda rate: float(np.mean(losses[rate])))
    return [r for r in members if _lr(r) == lr], lr, "same seeds"


# -- warnings ------------------------------------------------------------------------------------


def _run_warnings(records: list[Record]) -> list[str]:
    counts = Counter(str(r.status) for r in records)
    parts = [f"{counts[s]} {s}" for s in NOT_COMPLETED if counts[s]]
    if not parts:
        return []
    return [f"{listed(parts)} of {len(records)} runs: listed below, in no mean, interval or front"]


def _arm_warnings(arms: list[Arm]) -> list[str]:
    """Seeds that some layouts of a condition have and others lack."""
    warnings = []
    for condition in dict.fromkeys(arm.condition for arm in arms):
        group = [a for a in arms if a.condition == condition]
        seeds = sorted({s for a in group for s in a.seeds})
        for arm in group:
            lacking = [s for s in seeds if s not in arm.by_seed]
            if lacking and not arm.seeds:
                warnings.append(f"{_named(arm)} has no completed run and stands in no comparison")
            elif lacking:
                warnings.append(
                    f"{_named(arm)} lacks seed{'s' * (len(lacking) > 1)} "
                    f"{listed(map(str, lacking))}: compared on the seeds that both sides have"
                )
        if group and len(seeds) == 1:
            warnings.append(
                f"one seed only{' at ' + condition if condition else ''}: "
                "there is no spread to judge a difference by"
            )
    return warnings


def _named(arm: Arm) -> str:
    return f"{arm.label} ({arm.condition})" if arm.condition else arm.label


def _budget_warnings(records: list[Record], condition: dict[str, str]) -> list[str]:
    """Completed runs of one condition that saw other numbers of tokens or steps."""
    warnings = []
    done = [r for r in records if r.status == "completed"]
    for where in dict.fromkeys(condition[r.run_id] for r in done):
        group = [r for r in done if condition[r.run_id] == where]
        for what in ("tokens", "steps"):
            amounts = Counter(getattr(r.training, what) for r in group)
            if len(amounts) > 1:
                usual = amounts.most_common(1)[0][0]
                odd = [r for r in group if getattr(r.training, what) != usual]
                labels = sorted({r.layout.label for r in odd})
                warnings.append(
                    f"unequal budgets{' at ' + where if where else ''}: {listed(labels)} trained "
                    f"on {listed(sorted({f'{getattr(r.training, what):,}' for r in odd}))} {what} "
                    f"where the others had {usual:,}"
                )
                break
    return warnings


def _lr_warnings(arms: list[Arm]) -> list[str]:
    warnings = []
    flattered = [_named(a) for a in arms if a.lr_choice == "same seeds"]
    if flattered:
        warnings.append(
            f"the learning rate of {listed(flattered)} was chosen by validation loss on the very "
            "seeds that are reported: those figures are flattered; run fresh seeds at the chosen rate"
        )
    given = [a for a in arms if a.lr_choice == "given" and a.lr is not None]
    if len({a.lr for a in given}) > 1:
        rates = [f"{_named(a)} at {a.lr:g}" for a in given]
        warnings.append(f"layouts were given different learning rates: {listed(rates)}")
    return warnings


def _tied_warnings(tied: list[str], flat: dict[str, dict[str, Any]]) -> list[str]:
    """Settings that change along with the layout; a control solves for some of them."""
    controls = {values.get("control.name") for values in flat.values()}
    expected = {"model.d_ff", "model.d_model", "model.n_layers"}
    if controls <= {"fixed_d_model", None}:
        expected = set()
    found = [key for key in tied if key not in expected]
    return [
        f"{key} differs between layouts: its effect cannot be told from the layout's"
        for key in found
    ]


def _code_warnings(records: list[Record]) -> list[str]:
    warnings = []
    done = [r for r in records if r.status == "completed"]
    for key, what in (
        ("source_hash", "versions of the code"),
        ("data_hash", "versions of the data"),
    ):
        # Data differ between tasks as they should; within one task they must not.
        by_task: dict[Any, Counter[str]] = defaultdict(Counter)
        for record in done:
            task = record.config.get("task", {}).get("name") if key == "data_hash" else None
            if record.code.get(key):
                by_task[task][str(record.code[key])] += 1
        for counts in by_task.values():
            if len(counts) > 1:
                parts = [f"{n} with {value[:10]}" for value, n in counts.most_common()]
                warnings.append(f"completed runs mix {what}: {listed(parts)}")
    return warnings


def _cost_warnings(arms: list[Arm]) -> list[str]:
    warnings = []
    missing = [_named(a) for a in arms if a.cost is None]
    if missing and len(missing) < len(arms):
        warnings.append(f"no cost record for {listed(missing)}: not in the fronts")
    elif arms and missing:
        warnings.append("no cost records: nothing can be said about latency or memory")
    measured = [(a, a.cost, a.decode) for a in arms if a.cost]
    mixed: list[tuple[str, dict[str, list[str]]]] = []
    for what, read in (
        ("decode kernels", lambda c, p: p.kernel if p else None),
        ("ways of sharing KV heads at decode", lambda c, p: p.kv_sharing if p else None),
        ("backends", lambda c, p: c.backend),
        ("numbers of threads", lambda c, p: c.protocol.get("threads")),
    ):
        found: dict[str, list[str]] = defaultdict(list)
        for arm, cost, point in measured:
            value = read(cost, point)
            if value is not None:
                found[str(value)].append(arm.label)
        mixed.append((what, found))
    for what, found in mixed:
        if len(found) > 1:
            parts = [
                f"{value} ({listed(dict.fromkeys(labels))})" for value, labels in found.items()
            ]
            warnings.append(f"latencies mix {what}: {'; '.join(parts)}")
    for text, labels in _grouped((w, a.label) for a, cost, _ in measured for w in cost.warnings):
        warnings.append(f"measuring {listed(labels)}: {text}")
    floors = [cost.noise_floor for _, cost, _ in measured if cost.noise_floor is not None]
    if floors and max(floors) > 0.1:
        warnings.append(
            f"latency is noisy: one layout measured twice in one session differed by "
            f"{max(floors):.0%}; smaller differences mean nothing"
        )
    return warnings


def _grouped(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for key, label in pairs:
        found[key][label] = None
    return [(key, list(labels)) for key, labels in found.items()]


def _parameter_warnings(arms: list[Arm]) -> list[str]:
    warnings = []
    for condition in dict.fromkeys(a.condition for a in arms):
        counts = {a.label: a.n_params for a in arms if a.condition == condition and a.n_params}
        if not counts:
            continue
        least, most = (
            min(counts, key=lambda k: counts[k] or 0),
            max(counts, key=lambda k: counts[k] or 0),
        )
        low, high = counts[least] or 0, counts[most] or 0
        if high > 1.01 * low:
            warnings.append(
                f"layouts differ in parameters{' at ' + condition if condition else ''}: from "
                f"{low:,} ({least}) to {high:,} ({most}); part of a difference may be size"
            )
    return warnings
