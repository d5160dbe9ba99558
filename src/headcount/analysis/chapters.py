"""One chapter of a report: everything that is said and shown of one condition of one study."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from headcount.analysis import (
    charts,
    figures,
    interactive,
    pareto,
    recommend,
    summary,
    uncertainty,
    verdicts,
)
from headcount.analysis.evidence import Evidence
from headcount.analysis.figures import Picture
from headcount.analysis.recommend import Limits, Recommendation
from headcount.analysis.uncertainty import Fronts
from headcount.analysis.verdicts import Judgement


@dataclass(frozen=True)
class Chapter:
    """One condition of one study on the page."""

    evidence: Evidence
    title: str
    """Study and condition, as far as the page has several; empty where it has one."""
    sentences: list[str]
    judgement: Judgement
    fronts: Fronts
    front_words: str
    """Knee and hypervolume of the quality–latency front."""
    rows: list[summary.Row]
    pictures: list[Picture]
    specs: dict[str, Any]
    recommendations: dict[str, Recommendation]
    """Without limits, by the device whose costs count; one, under an empty name, where none was
    measured."""

    @property
    def n_runs(self) -> int:
        return sum(len(a.seeds) for a in self.evidence.arms_of(self.judgement.condition))


def chapters_of(
    evidence: Evidence, reference: str | None, margin: float | None, *, several: bool
) -> list[Chapter]:
    """The chapters of a study, one a condition. several: the page has other studies too."""
    found = []
    for condition in evidence.conditions:
        arms = evidence.arms_of(condition)
        known = reference if reference in {a.label for a in arms} else None
        judgement = verdicts.judge(evidence, condition, reference=known, margin=margin)
        fronts = uncertainty.fronts(arms, judgement)
        lines = charts.charts(evidence, judgement)
        parts = ([evidence.study.name] if several else []) + ([condition] if condition else [])
        found.append(
            Chapter(
                evidence=evidence,
                title=": ".join(parts),
                sentences=verdicts.sentences(judgement),
                judgement=judgement,
                fronts=fronts,
                front_words=_front_words(fronts, judgement),
                rows=summary.rows(evidence, judgement, fronts),
                pictures=figures.pictures(evidence, judgement, fronts, lines),
                specs=interactive.figures(evidence, judgement, fronts, lines),
                recommendations=_recommendations(evidence, judgement, margin),
            )
        )
    return found


def _recommendations(
    evidence: Evidence, judgement: Judgement, margin: float | None
) -> dict[str, Recommendation]:
    devices = sorted(
        {c.device for a in evidence.arms_of(judgement.condition) for c in a.costs}
    ) or [""]
    return {
        device: recommend.from_judgement(
            evidence, judgement, Limits(hardware=device or None, tolerance=margin)
        )
        for device in devices
    }


def _front_words(fronts: Fronts, judgement: Judgement) -> str:
    """Knee and hypervolume of the front of means, or nothing where it has no two points."""
    figures_ = np.array(
        [[a.decode_ms, judgement.metric.sign * a.mean] for a in fronts.arms]
    ).reshape(-1, 2)
    if pareto.front(figures_).sum() < 2:
        return ""
    scaled = pareto.scaled(figures_)
    volume = pareto.hypervolume(scaled, pareto.worst(scaled))
    at = pareto.knee(figures_)
    bend = f"its knee is {fronts.arms[at].label}; " if at is not None else "it has no knee; "
    return (
        f"The quality–latency front of the means: {bend}its hypervolume is {volume:.2f} of the box "
        "between the best and the worst of both."
    )
