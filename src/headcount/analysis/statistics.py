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
    squares, df = _residual_squares(table)
    return (squares / df, df) if df else (nan, 0)


def _residual_squares(table: Array) -> tuple[float, int]:
    """Sum of squares about the additive model, and its degrees of freedom."""
    k, n = table.shape
    if not np.isnan(table).any():
        by_layout, by_seed = table.sum(axis=1) / max(n, 1), table.sum(axis=0) / max(k, 1)
        values = table.ravel()
        residuals = (table - by_layout[:, None]) - (by_seed - by_layout.sum() / max(k, 1))
        df = max(k - 1, 0) * max(n - 1, 0)
    else:
        layout, seed = np.nonzero(~np.isnan(table))
        values = table[layout, seed]
        design = np.zeros((len(values), k + n))
        design[np.arange(len(values)), layout] = 1
        design[np.arange(len(values)), k + seed] = 1
        centred = values - values.sum() / max(len(values), 1)  # the same, without losing digits
        solution, _, rank, _ = np.linalg.lstsq(design, centred, rcond=None)
        residuals = centred - design @ solution
        df = len(values) - int(rank)
    squares = float((residuals**2).sum())
    rounding = len(values) * (1e-13 * float(np.abs(values).max(initial=0))) ** 2
    return (squares if squares > rounding else 0.0), df


APART = 0.05
"""Share of the studies whose layouts all vary alike in which one is set apart by chance, at most."""
NOISY = 3
"""A layout whose own variance is more than so many times the pooled one counts with its own, and with
its own degrees of freedom."""


@dataclass(frozen=True)
class Spread:
    """How far runs vary once what layouts and seeds do is out; arrays are (layouts,)."""

    pooled: float
    """Variance of one run, over the layouts that are not apart; NaN without degrees of freedom."""
    df: int
    """Of the pooled variance."""
    own: Array
    """Each layout's own variance, seen against the others that are not apart; NaN where unknown."""
    own_df: NDArray[np.int_]
    apart: NDArray[np.bool_]
    """Layouts that vary so much more than the others that they are not pooled with them."""

    def of(self, layout: int) -> tuple[float, int]:
        """Variance of a run of one layout and its degrees of freedom: the pooled, or its own."""
        if self._noisy(layout):
            return float(self.own[layout]), int(self.own_df[layout])
        return self.pooled, self.df

    def _noisy(self, layout: int) -> bool:
        return bool(self.apart[layout] or self.own[layout] > NOISY * self.pooled)

    def of_difference(self, layout: int, reference: int) -> tuple[float, float]:
        """Variance of a difference within a seed and its degrees of freedom (Welch and
        Satterthwaite's where one of the two has its own variance).

        The reference's error stands in every difference, so any excess of its own variance counts,
        and not only a great one.
        """
        variances = [self.of(layout)[0], self.of(reference)[0]]
        if not self._noisy(reference):
            variances[1] = np.fmax(self.pooled, self.own[reference])
        uncertain, shared = 0.0, 0.0
        for i, variance in zip((layout, reference), variances, strict=True):
            if self._noisy(i):
                uncertain += variance**2 / int(self.own_df[i])
            else:
                shared += variance
        total = float(sum(variances))
        uncertain += shared**2 / self.df if self.df else 0.0
        return total, total**2 / uncertain if uncertain else float(self.df)


def spread(table: Array) -> Spread:
    """The spread of a table, layouts × seeds (missing runs NaN): pooled, and each layout's own.

    A layout that varies far more than the others would widen the interval of every difference
    between these, and its own would be too narrow. So the noisiest is put to an F test against the
    others (does the table without it have a smaller residual variance?), then the noisiest of the
    rest, up to half of them; as many are set apart as the last of these tests that succeeds says
    (Rosner 1983, so that two noisy layouts do not hide each other), each at APART over the number of
    tests and of the layouts in it.
    """
    known = [int(i) for i in np.flatnonzero(~np.isnan(table).all(axis=1))]
    left, n_apart = list(known), 0
    removed: list[int] = []
    steps = len(known) // 2 if len(known) > 2 else 0
    for _ in range(steps):
        every = _residual_squares(table[left])
        p_values = {
            i: _p_noisier(every, _residual_squares(table[[j for j in left if j != i]]))
            for i in left
        }
        noisiest = min(left, key=lambda i: p_values[i])
        if p_values[noisiest] <= APART / steps / len(left):
            n_apart = len(removed) + 1
        left.remove(noisiest)
        removed.append(noisiest)
    apart = np.zeros(len(table), dtype=bool)
    apart[removed[:n_apart]] = True
    together = [i for i in known if not apart[i]]
    own, own_df = np.full(len(table), nan), np.zeros(len(table), dtype=int)
    for i in known:
        others = [j for j in together if j != i]
        (with_it, with_df), (rest, df) = map(
            _residual_squares, (table[[*others, i]], table[others])
        )
        if df and with_df > df:
            # Its contrast with the others' mean; their share of that vanishes with their number.
            own_df[i] = with_df - df
            own[i] = max(with_it - rest, 0) / own_df[i] * (1 + 1 / len(others))
    pooled, df = residual_variance(table[together])
    return Spread(pooled, df, own, own_df, apart)


def _p_noisier(every: tuple[float, int], rest: tuple[float, int]) -> float:
    """P-value of the F test that a layout varies no more than the others; 1 where none can be made.

    every, rest: squares and degrees of freedom about the additive model with and without it.
    """
    extra, extra_df, df = every[0] - rest[0], every[1] - rest[1], rest[1]
    if not (extra_df and df and extra > 0):
        return 1.0
    if not rest[0]:
        return 0.0
    return float(special.fdtrc(extra_df, df, extra / extra_df / (rest[0] / df)))


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
    n_layouts: float = 2,
    alpha: float = 0.05,
    power: float = 0.8,
) -> int | None:
    """Seeds at which a paired comparison would be decided with the given power.

    sd: of the difference within a seed. A difference beyond the margin has to be told from zero; a
    smaller one has to be told from the margin, whichever of the two it is nearer to: both a
    difference of exactly `margin` must be found, and none at all must show as equivalent.
    n_layouts: layouts over which the spread is pooled: 1 more than its degrees of freedom a seed.
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
