"""What a reader must know before using a study's figures, each in one line."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from math import isfinite, sqrt
from typing import Any

import numpy as np

from headcount.analysis.arms import Arm, spread_of
from headcount.analysis.statistics import NOISY
from headcount.analysis.words import listed
from headcount.study.records import Cost, Record

NOT_COMPLETED = ("diverged", "failed", "interrupted", "running")


def warnings_of(
    records: list[Record],
    arms: list[Arm],
    condition: dict[str, str],
    flat: dict[str, dict[str, Any]],
    tied: list[str],
) -> list[str]:
    """Every warning of a study.

    condition: each run's. flat: each run's `conditions.scientific`. tied: settings that go along with
    the layout.
    """
    return [
        *_run_warnings(records),
        *_arm_warnings(arms),
        *_spread_warnings(arms),
        *_budget_warnings(records, condition),
        *_lr_warnings(arms),
        *_tied_warnings(tied, flat),
        *_code_warnings(records, condition),
        *_cost_warnings(arms),
        *_parameter_warnings(arms),
    ]


def _run_warnings(records: list[Record]) -> list[str]:
    counts = Counter(str(r.status) for r in records)
    parts = [f"{counts[s]} {s}" for s in NOT_COMPLETED if counts[s]]
    warnings = []
    if parts:
        warnings.append(
            f"{listed(parts)} of {len(records)} runs: listed below, in no mean, interval or front"
        )
    losses = {r.run_id: r.quality.test_loss for r in records if r.status == "completed"}
    broken = [run_id for run_id, loss in losses.items() if loss is not None and not isfinite(loss)]
    if broken:
        warnings.append(f"no number stands as the test loss of {listed(broken)}: left out")
    return warnings


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


def _spread_warnings(arms: list[Arm]) -> list[str]:
    """Layouts that vary so much more between seeds than the others that they are judged alone."""
    warnings = []
    for condition in dict.fromkeys(arm.condition for arm in arms):
        group = [a for a in arms if a.condition == condition]
        spread = spread_of(group)
        # With many seeds a slight excess is told as well; it needs no word.
        for i in np.flatnonzero(spread.apart & (spread.own > NOISY * spread.pooled)):
            how = "between seeds, the other layouts do not"
            if spread.pooled:
                ratio = sqrt(spread.own[i] / spread.pooled)
                how = f"{ratio:.2g} times as much between seeds as the other layouts"
            warnings.append(f"{_named(group[i])} varies {how}; its intervals are its own")
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
    edge = [
        f"{_named(a)} at {a.sensitivity.rates[int(np.nanargmin(a.sensitivity.means))]:g}"
        for a in arms
        if a.sensitivity and a.sensitivity.on_edge
    ]
    if edge:
        warnings.append(
            f"the best learning rate lies on the edge of its grid for {listed(edge)}: "
            "a better one may lie beyond"
        )
    for condition in dict.fromkeys(arm.condition for arm in arms):
        given = [
            a
            for a in arms
            if a.condition == condition and a.lr_choice == "given" and a.lr is not None
        ]
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


def _code_warnings(records: list[Record], condition: dict[str, str]) -> list[str]:
    warnings = []
    done = [r for r in records if r.status == "completed"]
    for key, what in (
        ("source_hash", "versions of the code"),
        ("data_hash", "versions of the data"),
    ):
        # Data differ between tasks as they should; within one condition they must not.
        found: dict[str, Counter[str]] = defaultdict(Counter)
        for record in done:
            where = condition[record.run_id] if key == "data_hash" else ""
            if record.code.get(key):
                found[where][str(record.code[key])] += 1
        for where, counts in found.items():
            if len(counts) > 1:
                parts = [f"{n} with {value[:10]}" for value, n in counts.most_common()]
                at = f" at {where}" if where else ""
                warnings.append(f"completed runs{at} mix {what}: {listed(parts)}")
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
    warnings += _session_warnings([(a.label, cost) for a, cost, _ in measured])
    for text, labels in _grouped((w, a.label) for a, cost, _ in measured for w in cost.warnings):
        warnings.append(f"measuring {listed(labels)}: {text}")
    floors = [cost.noise_floor for _, cost, _ in measured if cost.noise_floor is not None]
    if floors and max(floors) > 0.1:
        warnings.append(
            f"latency is noisy: one layout measured twice in one session differed by "
            f"{max(floors):.0%}; smaller differences mean nothing"
        )
    return warnings


def _session_warnings(measured: list[tuple[str, Cost]]) -> list[str]:
    """Latencies from several sessions, with how much faster the host was in one than in another."""
    sessions = dict(_grouped((str(c.environment.get("session")), label) for label, c in measured))
    if len(sessions) < 2:
        return []
    speeds = [
        c.environment["ceilings"]["matmul_flops_per_s"][c.dtype]
        for _, c in measured
        if "ceilings" in c.environment
    ]
    ratio = f" ({max(speeds) / min(speeds):.2g} times, by a matrix product)" if speeds else ""
    return [
        f"latencies are from {len(sessions)} sessions ({'; '.join(map(listed, sessions.values()))}), and "
        f"the host may have been faster in one than in another{ratio}; measured by one command they are "
        "comparable"
    ]


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
