"""The statistics of a study: plain functions on arrays of losses or accuracies, no records.

Layouts of one study share seeds, and a seed means the same batches to every layout. So a study is
a table, layouts × seeds, with effects that add:

    value[layout, seed] = layout's mean + seed's effect + error

Differences between layouts are taken within a seed, where the seed's effect cancels.
`scipy.special` holds every distribution needed here and imports in a fraction of `scipy.stats`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, inf, nan, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy import special

Array = NDArray[np.float64]

MOST_SEEDS = 1000
"""Beyond this many seeds an answer is out of reach, and `seeds_needed` says None."""


@dataclass(frozen=True)
class Interval:
    """An estimate between its limits, in the unit of the values."""

    estimate: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


def t_quantile(probability: float, df: float) -> float:
    """The quantile of Student's t; infinite without degrees of freedom."""
    return float(special.stdtrit(df, probability)) if df > 0 else inf


def t_interval(values: Array, level: float = 0.95) -> Interval:
    """Mean and Student's t interval of independent values; unlimited for fewer than two."""
    n = len(values)
    mean = float(np.mean(values)) if n else nan
    if n < 2:
        return Interval(mean, -inf, inf)
    half = t_quantile((1 + level) / 2, n - 1) * float(np.std(values, ddof=1)) / sqrt(n)
    return Interval(mean, mean - half, mean + half)


def bootstrap_t_interval(
    values: Array, level: float = 0.95, resamples: int = 4000, seed: int = 0
) -> Interval | None:
    """The studentised bootstrap interval of a mean, or None where there is too little to resample.

    Of the bootstrap intervals this is the one whose coverage is near nominal for few values (Efron
    and Tibshirani 1993, ch. 12); the percentile interval of 5 values covers 83% instead of 95%.
    Below 5 values, or where they are all the same, resampling says nothing: None.
    """
    n = len(values)
    if n < 5 or np.ptp(values) == 0:
        return None
    draws = values[np.random.default_rng(seed).integers(n, size=(resamples, n))]
    errors = draws.std(axis=1, ddof=1) / sqrt(n)
    usable = errors > 1e-12 * np.ptp(values)
    mean = float(values.mean())
    pivots = (draws.mean(axis=1)[usable] - mean) / errors[usable]
    low, high = np.quantile(pivots, [(1 - level) / 2, (1 + level) / 2])
    error = float(values.std(ddof=1)) / sqrt(n)
    return Interval(mean, mean - float(high) * error, mean - float(low) * error)


def residual_variance(table: Array) -> tuple[float, int]:
    """Error variance and degrees of freedom of the additive model of a table, layouts × seeds.

    Missing runs are NaN. A balanced table of k layouts and n seeds leaves (k−1)(n−1) degrees of
    freedom; (nan, 0) where none is left. Pooling the spread over layouts is what makes three seeds
    tell something: one pair of layouts with three seeds has two degrees of freedom.
    """
    layout, seed = np.nonzero(~np.isnan(table))
    k, n = table.shape
    design = np.zeros((len(layout), k + n))
    design[np.arange(len(layout)), layout] = 1
    design[np.arange(len(layout)), k + seed] = 1
    if not len(layout):
        return nan, 0
    values = table[layout, seed]
    centred = values - values.mean()  # the same residuals, without losing digits
    solution, _, rank, _ = np.linalg.lstsq(design, centred, rcond=None)
    df = len(values) - int(rank)
    if df <= 0:
        return nan, 0
    residuals = centred - design @ solution
    return float(residuals @ residuals) / df, df


def holm(p_values: Array) -> Array:
    """Holm's step-down adjustment (1979): reject where the result is at most alpha."""
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p, kind="stable")
    steps = np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p))))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(steps, 1)
    return adjusted


def p_difference(difference: float, error: float, df: float) -> float:
    """Two-sided p-value against no difference. error: standard error of the difference."""
    if df <= 0:
        return 1.0
    if error == 0:
        return 1.0 if difference == 0 else 0.0
    return float(2 * special.stdtr(df, -abs(difference) / error))


def p_equivalence(difference: float, error: float, df: float, margin: float) -> float:
    """P-value against a difference of `margin` or more: the greater of two one-sided tests
    (Schuirmann 1987)."""
    if df <= 0:
        return 1.0
    if error == 0:
        return 0.0 if abs(difference) < margin else 1.0
    return float(special.stdtr(df, (abs(difference) - margin) / error))


def detectable_noncentrality(df: float, alpha: float = 0.05, power: float = 0.8) -> float:
    """Difference over its standard error which a two-sided t test finds with the given power.

    From the noncentral t; the chance of finding it with the wrong sign is left out (below 1e-5).
    """
    if df <= 0:
        return inf
    return float(special.nctdtrinc(df, 1 - power, t_quantile(1 - alpha / 2, df)))


def minimum_detectable_difference(
    sd: float, n_seeds: int, *, alpha: float = 0.05, power: float = 0.8
) -> float:
    """Smallest difference that two independent arms of `n_seeds` runs of spread `sd` tell apart.

    Agrees with the published table for GPT-2-size runs, sd 0.0019: 2 seeds .0108, 3 .0059,
    5 .0039, 10 .0025.
    """
    return detectable_noncentrality(2 * n_seeds - 2, alpha, power) * sd * sqrt(2 / n_seeds)


def seeds_needed(
    sd: float, difference: float, *, alpha: float = 0.05, power: float = 0.8
) -> int | None:
    """Seeds an arm, at least 2, at which two independent arms tell `difference` apart."""
    return first_count(
        lambda n: minimum_detectable_difference(sd, n, alpha=alpha, power=power) <= difference, 2
    )


def paired_seeds_needed(
    sd: float,
    difference: float,
    margin: float,
    *,
    n_layouts: int = 2,
    alpha: float = 0.05,
    power: float = 0.8,
) -> int | None:
    """Seeds at which a paired comparison would be decided with the given power.

    sd: of the difference within a seed. A difference beyond the margin has to be told from zero; a
    smaller one has to be told from the margin, whichever of the two it is nearer to: both a
    difference of exactly `margin` must be found, and none at all must show as equivalent.
    n_layouts: layouts over which the spread is pooled.
    """

    def decided(n: int) -> bool:
        df, error = (n_layouts - 1) * (n - 1), sd / sqrt(n)
        found = detectable_noncentrality(df, alpha, power) * error
        if abs(difference) > margin:
            return found <= abs(difference)
        # At no difference the test is passed on both sides with chance `power`.
        both_sides = t_quantile(1 - alpha, df) + t_quantile((1 + power) / 2, df)
        return max(found, both_sides * error) <= margin

    return first_count(decided, 2)


def first_count(enough: Callable[[int], bool], least: int) -> int | None:
    """Smallest n from `least` on for which the monotone `enough(n)` holds; None beyond MOST_SEEDS."""
    if not enough(MOST_SEEDS):
        return None
    low, high = least - 1, MOST_SEEDS  # enough(high) holds, enough(low) does not
    while high - low > 1:
        middle = ceil((low + high) / 2)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
