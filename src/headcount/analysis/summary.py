"""The table of a study: one row a layout, for the terminal and the page."""

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np

from headcount.analysis import evidence as evidence_
from headcount.analysis import statistics, uncertainty, verdicts
from headcount.analysis.arms import Arm, Metric
from headcount.analysis.evidence import Evidence
from headcount.analysis.pareto import front
from headcount.analysis.uncertainty import Fronts
from headcount.analysis.verdicts import Judgement
from headcount.analysis.words import bytes_text, count, millis, plus_minus, short_count, signed
from headcount.study.store import Study

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class Row:
    """One layout as people read it; the numbers behind it, for sorting, are the arm's."""

    arm: Arm
    params: str
    quality: str
    seeds: str
    difference: str
    verdict: str
    decode: str
    kv: str
    on_latency_front: bool
    on_kv_front: bool
    chances: tuple[float, float, float]
    """Share of the draws in which it is on the front with latency, with KV bytes, with both."""


def rows(evidence: Evidence, judgement: Judgement, fronts: Fronts) -> list[Row]:
    """One row for each layout of the condition, also those without a completed run."""
    arms = evidence.arms_of(judgement.condition)
    sign = judgement.metric.sign
    by_latency = front(np.array([[a.decode_ms, sign * a.mean] for a in arms]).reshape(-1, 2))
    by_kv = front(np.array([[a.kv_bytes, sign * a.mean] for a in arms]).reshape(-1, 2))
    return [
        Row(
            arm=arm,
            params=f"{arm.n_params:,}" if arm.n_params else "—",
            quality=plus_minus(arm.mean, statistics.t_interval(arm.values).half_width),
            seeds=_seeds(arm),
            difference=_difference(judgement, arm),
            verdict=judgement.of(arm).words,
            decode=millis(arm.decode_ms),
            kv=bytes_text(arm.kv_bytes),
            on_latency_front=bool(by_latency[i]),
            on_kv_front=bool(by_kv[i]),
            chances=fronts.of(arm),
        )
        for i, arm in enumerate(arms)
    ]


def _seeds(arm: Arm) -> str:
    """`3`, or `2 of 3` where runs of the layout did not complete."""
    planned = len(arm.seeds) + sum(n for s, n in arm.statuses.items() if s != "completed")
    return f"{len(arm.seeds)}" if planned == len(arm.seeds) else f"{len(arm.seeds)} of {planned}"


def _difference(judgement: Judgement, arm: Arm) -> str:
    comparison = judgement.of(arm)
    if comparison.verdict in ("reference", "no data"):
        return ""
    difference = comparison.difference
    if not isfinite(difference.half_width):
        return signed(difference.estimate, float("inf"))
    places = plus_minus(difference.estimate, difference.half_width).partition(" ± ")[2]
    return f"{signed(difference.estimate, difference.half_width)} ± {places}"


def summary_table(study: Study) -> "RenderableType":
    """The study's answer for a terminal of 80 to 100 columns: the table and the verdict in words."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    evidence = evidence_.load(study)
    parts: list[RenderableType] = []
    for condition in evidence.conditions:
        judgement = verdicts.judge(evidence, condition)
        metric = judgement.metric
        unit = f" ({metric.unit})" if metric.unit else ""
        table = Table(
            title=f"{study.name}{': ' + condition if condition else ''}",
            caption=_caption(evidence, metric),
            caption_justify="left",
            box=None,
            pad_edge=False,
            padding=(0, 1, 0, 0),
        )
        table.add_column("layout", no_wrap=True)
        table.add_column("params", justify="right", no_wrap=True)
        table.add_column(f"{metric.name}{unit}\n± 95% (seeds)", justify="right", no_wrap=True)
        table.add_column("Δ ± 95%", justify="right", no_wrap=True)
        table.add_column("verdict", no_wrap=True)
        table.add_column("decode\nms", justify="right", no_wrap=True)
        table.add_column("KV per\ntoken", justify="right", no_wrap=True)
        fronts = uncertainty.fronts(evidence.arms_of(condition), judgement)
        for row in rows(evidence, judgement, fronts):
            table.add_row(
                row.arm.label,
                short_count(arm.n_params) if (arm := row.arm).n_params else "—",
                f"{row.quality} ({row.seeds})",
                row.difference,
                Text(_brief(row.verdict), style=_STYLE.get(row.verdict, "dim")),
                row.decode + ("*" if row.on_latency_front else " "),
                row.kv + ("*" if row.on_kv_front else " "),
            )
        parts += [table, Text(" ".join(verdicts.sentences(judgement)))]
    if not evidence.conditions:
        parts.append(Text(f"{study.name}: no run yet."))
    if evidence.warnings:
        parts.append(Text(f"{count(len(evidence.warnings), 'warning')}; see the report."))
    return Group(*parts)


_STYLE = {"better": "green", "worse": "red", "equivalent": "cyan", "reference": "bold"}


def _brief(words: str) -> str:
    """The verdict in the width of a terminal; `undecided +9` wants 9 more seeds."""
    if not words.startswith("not yet decided: "):
        return words
    number = words.removeprefix("not yet decided: ").split()[0]
    return f"undecided +{number}" if number.isdigit() else "undecided"


def _caption(evidence: Evidence, metric: Metric) -> str:
    setup = f"Decode: median ms a step, {evidence.cost_setup}. " if evidence.cost_setup else ""
    return f"{setup}Δ: from the reference, within seeds. *: on the front with {metric.name}."
