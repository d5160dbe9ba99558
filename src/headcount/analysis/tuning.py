"""Learning rates: which runs of a layout chose one, which report at it, and how much it matters."""

from collections import Counter, defaultdict
from collections.abc import Set
from dataclasses import dataclass
from math import exp, log
from typing import Literal

import numpy as np

from headcount.study.records import Record

LRChoice = Literal["given", "tuned", "same seeds"]
"""Where an arm's learning rate is from: its runs have one; it was chosen among several on other
seeds than those reported; or on the very seeds reported."""


@dataclass(frozen=True)
class Sensitivity:
    """A layout's validation loss against the learning rate, over the seeds that chose it."""

    rates: tuple[float, ...]
    """Ascending."""
    means: tuple[float, ...]
    """Mean best validation loss at each rate; NaN where no run completed."""
    lows: tuple[float, ...]
    highs: tuple[float, ...]
    """The least and the greatest over seeds."""
    lost: tuple[int, ...]
    """Runs at each rate that did not complete."""
    optimum: float
    """Where a parabola in log lr has its least, through the best rate and its neighbours."""
    on_edge: bool
    """The best rate is the least or the greatest tried: a better one may lie beyond."""


def rate_of(record: Record) -> float | None:
    lr = record.config.get("optim", {}).get("lr")
    return None if lr is None else float(lr)


def seed_of(record: Record) -> int:
    return int(record.config.get("seed", 0))


def reported_runs(
    members: list[Record], planned: Set[int] = frozenset()
) -> tuple[list[Record], float | None, LRChoice]:
    """The runs of one layout that are reported, their learning rate, and where it is from.

    planned: seeds that select, as a plan says. Without one, seeds that ran at several learning rates
    selected one, and seeds that ran at a single rate report. Of several rates the one nearest to the
    optimum is reported. Where no seed is left to report on, the rate with the best mean validation loss is reported on
    the very seeds that chose it, which flatters it.
    """
    rates = {rate_of(r) for r in members}
    if len(rates) <= 1:
        return members, next(iter(rates), None), "given"
    selecting = _selecting(members, planned)
    fresh = [r for r in members if seed_of(r) not in selecting]
    found = sensitivity(members, planned)
    if found is None:
        return members, None, "given"
    tried = {lr for r in fresh if (lr := rate_of(r)) is not None}
    if tried:
        lr = min(tried, key=lambda lr: abs(log(lr / found.optimum)))
        return [r for r in fresh if rate_of(r) == lr], lr, "tuned"
    lr = found.rates[int(np.nanargmin(found.means))]
    return [r for r in members if rate_of(r) == lr], lr, "same seeds"


def sensitivity(members: list[Record], planned: Set[int] = frozenset()) -> Sensitivity | None:
    """How one layout takes to the learning rates it was tried at; None for fewer than two. planned:
    as in `reported_runs`."""
    selecting = _selecting(members, planned)
    losses: dict[float, list[float]] = defaultdict(list)
    lost: Counter[float] = Counter()
    for record in members:
        lr, loss = rate_of(record), record.quality.val_loss
        if lr is None or seed_of(record) not in selecting:
            continue
        if record.status == "completed" and loss is not None:
            losses[lr].append(loss)
        else:
            lost[lr] += 1
    rates = sorted({*losses, *lost})
    if len(rates) < 2 or not losses:
        return None
    means = [float(np.mean(losses[lr])) if losses[lr] else float("nan") for lr in rates]
    best = int(np.nanargmin(means))
    return Sensitivity(
        rates=tuple(rates),
        means=tuple(means),
        lows=tuple(min(losses[lr], default=float("nan")) for lr in rates),
        highs=tuple(max(losses[lr], default=float("nan")) for lr in rates),
        lost=tuple(lost[lr] for lr in rates),
        optimum=_vertex(rates, means, best),
        on_edge=best in (0, len(rates) - 1),
    )


def _vertex(rates: list[float], means: list[float], best: int) -> float:
    """The least of the parabola through the best rate and its neighbours; the best rate itself at an
    edge of the grid or where a neighbour did not complete."""
    around = means[max(best - 1, 0) : best + 2]
    if len(around) < 3 or np.isnan(around).any():
        return rates[best]
    x = np.log(rates[best - 1 : best + 2]) - log(rates[best])
    curvature, slope, _ = np.polyfit(x, around, 2)
    return rates[best] * exp(-slope / (2 * curvature)) if curvature > 0 else rates[best]


def _selecting(members: list[Record], planned: Set[int]) -> Set[int]:
    """The seeds whose runs choose: those planned for it, else those that ran at several rates."""
    found: dict[int, set[float | None]] = defaultdict(set)
    for record in members:
        found[seed_of(record)].add(rate_of(record))
    return planned & found.keys() or {seed for seed, rates in found.items() if len(rates) > 1}
