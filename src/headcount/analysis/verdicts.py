"""Verdicts: each layout against a reference, over the seeds that both have."""

from dataclasses import dataclass
from functools import cached_property
from math import inf, isfinite, log, nan, sqrt
from typing import Literal

import numpy as np

from headcount.analysis import statistics
from headcount.analysis.arms import Arm, Metric, check_reference, grouping, spread_of
from headcount.analysis.evidence import Evidence
from headcount.analysis.statistics import Array, Interval, Spread
from headcount.analysis.words import count, listed, plus_minus, signed
from headcount.errors import RequestError

Verdict = Literal["reference", "better", "worse", "equivalent", "undecided", "no data"]
ALPHA = 0.05
POWER = 0.8


@dataclass(frozen=True)
class Comparison:
    """One layout against the reference. Differences are `arm − reference`, in the metric's unit."""

    arm: Arm
    pairs: Array
    """Differences on the seeds that both have, (n_pairs,)."""
    difference: Interval
    """Mean difference within a seed and its 95% interval, for this layout alone."""
    sd: float
    """Standard deviation of one difference within a seed."""
    p_holm: float
    """Against no difference, corrected over the layouts of the condition."""
    p_equivalent: float
    """Against a difference beyond the margin, corrected likewise."""
    verdict: Verdict
    more_seeds: int | None = None
    """Undecided: so many more seeds would decide it with power 0.8; None: not within reach."""

    @property
    def n_pairs(self) -> int:
        return len(self.pairs)

    @cached_property
    def bootstrap(self) -> Interval | None:
        """The interval of the difference by resampling seeds; None below five pairs."""
        return statistics.bootstrap_t_interval(self.pairs)

    @property
    def words(self) -> str:
        """The verdict as a table shows it."""
        if self.verdict == "undecided":
            if not isfinite(self.difference.high):
                return "not yet decided: needs more seeds"
            more = "no feasible number of" if self.more_seeds is None else f"{self.more_seeds}"
            return (
                f"not yet decided: {more} more {'seed' if self.more_seeds == 1 else 'seeds'} would"
            )
        return self.verdict


@dataclass(frozen=True)
class Judgement:
    """All verdicts of one condition."""

    condition: str
    metric: Metric
    reference: Arm | None
    """None where no layout has a completed run."""
    margin: float
    margin_stated: bool
    """The margin was asked for, not the default."""
    comparisons: list[Comparison]
    """Every arm of the condition, the reference included, in the arms' order."""
    spread: Spread
    """Of the arms, in their order."""

    @property
    def df(self) -> int:
        """Degrees of freedom of the pooled spread; 0 where one seed tells none."""
        return self.spread.df

    def of(self, arm: Arm) -> Comparison:
        return next(c for c in self.comparisons if c.arm is arm)

    def labelled(self, verdict: Verdict) -> list[Comparison]:
        return [c for c in self.comparisons if c.verdict == verdict]

    def error(self, arm: Arm) -> tuple[float, int]:
        """Standard error of an arm's mean once what a seed does to every layout is out, and its
        degrees of freedom; (nan, 0) where there is no spread to tell."""
        if not self.df or not len(arm.values):
            return nan, 0
        place = next(i for i, c in enumerate(self.comparisons) if c.arm is arm)
        variance, df = self.spread.of(place)
        return sqrt(variance / len(arm.values)), df

    def bar(self, arm: Arm) -> float:
        """Half-width of a 95% interval that compares layouts; 0 where there is no spread to tell.

        What a seed does to every layout is taken out, and the rest pooled over layouts (Loftus and
        Masson 1994); the interval of a layout's mean alone, which keeps it, is wider.
        """
        error, df = self.error(arm)
        return statistics.t_quantile(1 - ALPHA / 2, df) * error if df else 0.0

    @property
    def best(self) -> Arm | None:
        """The layout with the best mean; that it is best need not be certain."""
        arms = [c.arm for c in self.comparisons if len(c.arm.values)]
        return min(arms, key=lambda a: self.metric.sign * a.mean, default=None)


def judge(
    evidence: Evidence,
    condition: str | None = None,
    *,
    reference: str | None = None,
    margin: float | None = None,
) -> Judgement:
    """Compare the arms of one condition (the main one by default) with a reference layout.

    reference: a layout's label; by default the middle MHA layout. margin: differences below it do
    not matter, in the metric's unit; by default the metric's own. RequestError for a reference
    that the study lacks or a margin that is not positive.

    The error of a difference adds the variances of its two layouts (`Spread.of_difference`): pooled
    over layouts, as with three seeds a layout's own spread is often small by luck, or a layout's own
    where that is far greater. A pair with a layout set apart has the pair's own error.
    """
    if margin is not None and not 0 < margin < inf:
        raise RequestError(f"margin={margin:g}: must be a number above 0")
    if condition is None:
        condition = next(iter(evidence.conditions), "")
    metric = evidence.metric_of(condition)
    arms = evidence.arms_of(condition)
    if reference is not None:
        check_reference(reference, arms)
    reference_arm = _reference(arms, reference)
    width = metric.margin if margin is None else margin
    spread = spread_of(arms)
    comparisons = compare(arms, reference_arm, metric, width, spread)
    return Judgement(
        condition=condition,
        metric=metric,
        reference=reference_arm,
        margin=width,
        margin_stated=margin is not None,
        comparisons=comparisons,
        spread=spread,
    )


def _reference(arms: list[Arm], asked: str | None) -> Arm | None:
    """The arm asked for; else MHA, with most seeds, that GQA or MQA layouts vary, in the middle."""
    if asked is not None:
        return next(a for a in arms if a.label == asked)
    able = [a for a in arms if len(a.values)]
    if not able:
        return None
    mha = [a for a in able if grouping(a.layout)[0] == 0] or able
    middle = float(np.median([log(a.layout.n_heads) for a in mha]))

    def fitness(arm: Arm) -> tuple[float, ...]:
        variants = sum(a.layout.n_heads == arm.layout.n_heads for a in able)
        distance = abs(log(arm.layout.n_heads) - middle)
        return len(arm.values), variants, -round(distance, 9), arm.layout.n_heads

    return max(mha, key=fitness)


def compare(
    arms: list[Arm],
    reference: Arm | None,
    metric: Metric,
    margin: float,
    spread: Spread,
) -> list[Comparison]:
    """Every arm against the reference, in the arms' order, the reference itself included.

    spread: of the arms, in their order.
    """
    nothing = Interval(nan, -inf, inf)
    pairs: dict[int, Array] = {}
    for i, arm in enumerate(arms):
        if reference is not None and arm is not reference:
            shared = [s for s in arm.seeds if s in reference.by_seed]
            if shared:
                pairs[i] = np.array([arm.by_seed[s] - reference.by_seed[s] for s in shared])
    at = next((i for i, arm in enumerate(arms) if arm is reference), 0)
    at = next((i for i, arm in enumerate(arms) if arm is reference), 0)
    known = {i: _error(d, spread, i, at) for i, d in pairs.items()}
    means = {i: float(d.mean()) for i, d in pairs.items()}
    p_holm = statistics.holm(
        np.array([statistics.p_difference(means[i], *known[i]) for i in pairs])
    )
    p_same = statistics.holm(
        np.array([statistics.p_equivalence(means[i], *known[i], margin) for i in pairs])
    )
    place = {i: n for n, i in enumerate(pairs)}
    comparisons = []
    for i, arm in enumerate(arms):
        if arm is reference:
            zeros = np.zeros(len(arm.seeds))
            comparisons.append(Comparison(arm, zeros, Interval(0, 0, 0), 0, 1, 1, "reference"))
        elif i not in pairs:
            comparisons.append(Comparison(arm, np.empty(0), nothing, inf, 1, 1, "no data"))
        else:
            (error, df), n = known[i], len(pairs[i])
            half = statistics.t_quantile(1 - ALPHA / 2, df) * error if df else inf
            different, same = float(p_holm[place[i]]), float(p_same[place[i]])
            verdict = _verdict(means[i], different, same, metric)
            more = None
            if verdict == "undecided" and df:
                needed = statistics.paired_seeds_needed(
                    error * sqrt(n),
                    means[i],
                    margin,
                    n_layouts=1 + df / max(n - 1, 1),
                    alpha=ALPHA / len(pairs),
                    power=POWER,
                )
                more = None if needed is None else max(1, needed - n)
            comparisons.append(
                Comparison(
                    arm,
                    pairs[i],
                    Interval(means[i], means[i] - half, means[i] + half),
                    error * sqrt(n),
                    different,
                    same,
                    verdict,
                    more,
                )
            )
    return comparisons


def _error(differences: Array, spread: Spread, arm: int, reference: int) -> tuple[float, float]:
    """Standard error of a mean paired difference and its degrees of freedom; (inf, 0) where nothing
    tells it."""
    n = len(differences)
    if n > 1 and not differences.any():
        # The same on every seed: a saturated accuracy, nothing left to vary.
        return 0.0, n - 1
    if spread.apart[arm] or spread.apart[reference]:
        return (float(differences.std(ddof=1)) / sqrt(n), n - 1) if n > 1 else (inf, 0)
    if not spread.df:
        return inf, 0
    variance, df = spread.of_difference(arm, reference)
    return sqrt(variance / n), df


def _verdict(difference: float, p_different: float, p_same: float, metric: Metric) -> Verdict:
    """Equivalent comes first: a difference that is real but below the margin does not matter."""
    if p_same <= ALPHA:
        return "equivalent"
    if p_different <= ALPHA:
        return "better" if metric.sign * difference < 0 else "worse"
    return "undecided"


def sentences(judgement: Judgement) -> list[str]:
    """The answer in plain words, most important first."""
    metric, reference = judgement.metric, judgement.reference
    if reference is None:
        return ["No run has completed: there is nothing to compare yet."]
    best = judgement.best
    assert best is not None
    others = [c for c in judgement.comparisons if c.verdict != "reference"]
    half = statistics.t_interval(best.values).half_width
    lowest = "Lowest" if metric.sign > 0 else "Highest"
    value = f"{plus_minus(best.mean, half)} {metric.unit}".rstrip()
    seeds = count(len(best.seeds), "seed")
    lines = [f"{lowest} mean {metric.name}: {best.label} with {value} over {seeds}."]
    if not others:
        return [*lines, "It is the only layout: there is nothing to compare it with."]
    parts = [
        f"{listed([_with_difference(c) for c in found])} {'is' if len(found) == 1 else 'are'} "
        f"{word}"
        for word in ("better", "worse", "equivalent")
        if (found := judgement.labelled(word))
    ]
    against = f"Against {reference.label} ({count(len(reference.seeds), 'seed')})"
    lines.append(f"{against}: {'; '.join(parts)}." if parts else f"{against}, nothing is decided.")
    undecided = judgement.labelled("undecided")
    if undecided:
        labels = listed([c.arm.label for c in undecided])
        lines.append(f"Not yet decided: {labels}. {_what_would(undecided, judgement)}")
    return lines


def _with_difference(comparison: Comparison) -> str:
    d = comparison.difference
    return f"{comparison.arm.label} ({signed(d.estimate, d.half_width)})"


def _what_would(undecided: list[Comparison], judgement: Judgement) -> str:
    if not judgement.df:
        return "One seed has no spread: at least 2 more seeds are needed to judge any difference."
    known = [c.more_seeds for c in undecided if c.more_seeds is not None]
    if not known:
        return (
            f"With a spread of {judgement.spread.pooled**0.5:.2g} between runs no feasible number of seeds "
            f"would; a wider margin than {judgement.margin:g} or longer training could."
        )
    least, most = min(known), max(known)
    number = f"{least}" if least == most else f"{least} to {most}"
    hopeless = listed([c.arm.label for c in undecided if c.more_seeds is None])
    but = f"; for {hopeless} no feasible number would" if hopeless else ""
    return f"{number} more {'seed' if most == 1 else 'seeds'} would decide, at a power of {POWER:g}{but}."
