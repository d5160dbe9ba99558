"""Rows of ratios with their spread, as Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headcount.measure.compare import ratio_interval


@dataclass(frozen=True)
class Row:
    """One comparison: how many times the other's time ours fits into."""

    what: str
    against: str
    ours_ms: float
    theirs_ms: float
    ratio: float
    low: float
    high: float
    target: float | None


def row(
    what: str,
    against: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    target: float | None = None,
) -> Row:
    """Speed of ours against theirs, theirs/ours, from samples taken in pairs: above 1 ours is
    faster; with the 95% bootstrap interval of the ratio of medians."""
    ours_ms, theirs_ms = float(np.median(ours)), float(np.median(theirs))
    low, high = ratio_interval(ours, theirs, paired=True)
    return Row(what, against, ours_ms, theirs_ms, theirs_ms / ours_ms, low, high, target)


def markdown(rows: Sequence[Row]) -> str:
    lines = [
        "| what | against | ours, ms | theirs, ms | times as fast (95%) | target | met |",
        "|---|---|--:|--:|--:|--:|---|",
    ]
    for r in rows:
        met = "" if r.target is None else "yes" if r.ratio >= r.target else "**no**"
        target = "" if r.target is None else f"{r.target:g}"
        lines.append(
            f"| {r.what} | {r.against} | {r.ours_ms:.3g} | {r.theirs_ms:.3g} "
            f"| {r.ratio:.2f} ({r.low:.2f}–{r.high:.2f}) | {target} | {met} |"
        )
    return "\n".join(lines)
