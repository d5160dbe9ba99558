"""What the figures of a study could also have been: draws from what seeds and timings leave open.

Quality is drawn from the sampling distribution of the means (a parametric bootstrap over seeds: with
three seeds there are ten ways to resample them, too few to tell a probability). Latency is drawn by
resampling the timed steps, and by the noise floor: what one layout measured twice in a session
differs by.
"""

from dataclasses import dataclass
from math import inf, pi, sqrt

import numpy as np

from headcount.analysis.evidence import Arm
from headcount.analysis.statistics import Array
from headcount.analysis.verdicts import Judgement
from headcount.study.records import Cost, Point

DRAWS = 1000


@dataclass(frozen=True)
class Draws:
    """Figures of each arm, all to be minimised; NaN where there are none."""

    quality: Array
    """The metric times its sign, (draws, arms); the same in every draw where one seed has no spread."""
    latency: Array
    """Milliseconds, (draws, arms)."""


def draw(
    arms: list[Arm],
    judgement: Judgement,
    timings: list[tuple[Cost, Point] | None],
    draws: int = DRAWS,
    seed: int = 0,
) -> Draws:
    """Draw the arms' figures. timings: for each arm the cost record and the point of its grid."""
    rng = np.random.default_rng(seed)
    return Draws(
        quality=_quality(arms, judgement, draws, rng),
        latency=np.stack([_latency(t, draws, rng) for t in timings], axis=1)
        if timings
        else np.empty((draws, 0)),
    )


def _quality(arms: list[Arm], judgement: Judgement, draws: int, rng: np.random.Generator) -> Array:
    means = judgement.metric.sign * np.array([a.mean for a in arms])
    if not judgement.df:
        return np.tile(means, (draws, 1))
    errors = np.array([error(a, judgement) for a in arms])
    # One spread is estimated for all layouts, so a draw shares its error.
    scale = np.sqrt(judgement.df / rng.chisquare(judgement.df, (draws, 1)))
    drawn: Array = means + scale * errors * rng.normal(size=(draws, len(arms)))
    return drawn


def error(arm: Arm, judgement: Judgement) -> float:
    """Standard error of an arm's mean once what seeds share is out; NaN without a run."""
    if not len(arm.values) or not judgement.df:
        return float("nan")
    pooled = judgement.spread**2
    comparison = judgement.of(arm)
    own = comparison.sd**2 - pooled if comparison.n_pairs and comparison.sd < inf else pooled
    return sqrt(max(own, pooled) / len(arm.values))


def _latency(timing: tuple[Cost, Point] | None, draws: int, rng: np.random.Generator) -> Array:
    if timing is None:
        return np.full(draws, np.nan)
    cost, point = timing
    samples = np.asarray(point.samples_ms)
    medians = np.median(samples[rng.integers(len(samples), size=(draws, len(samples)))], axis=1)
    # The floor is one difference of two medians: |d| of two equal normals averages 2/√π of their sd.
    sd = (cost.noise_floor or 0.0) * sqrt(pi) / 2
    drawn: Array = medians * np.exp(rng.normal(0, sd, draws))
    return drawn
