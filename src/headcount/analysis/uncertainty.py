"""What the figures of a study could also have been: draws from what seeds and timings leave open.

Quality is drawn from the sampling distribution of the means (a parametric bootstrap over seeds: with
three seeds there are ten ways to resample them, too few to tell a probability). Latency is drawn by
resampling the timed steps, and by the noise floor: what one layout measured twice in a session
differs by.
"""

from dataclasses import dataclass
from math import pi, sqrt

import numpy as np

from headcount.analysis.arms import Arm
from headcount.analysis.pareto import membership
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
    errors, dfs = np.array([judgement.error(a) for a in arms]).T
    # One spread is estimated for the layouts that share it, so a draw shares its error.
    shared = rng.chisquare(judgement.df, draws)
    own = rng.chisquare(np.maximum(dfs, 1), (draws, len(arms)))
    alone = [bool(judgement.spread.of(i)[0] != judgement.spread.pooled) for i in range(len(arms))]
    scale = np.where(alone, np.sqrt(dfs / own), np.sqrt(judgement.df / shared)[:, None])
    drawn: Array = means + scale * errors * rng.normal(size=(draws, len(arms)))
    return drawn


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


@dataclass(frozen=True)
class Fronts:
    """How surely each arm is on a front; shares are (arms,), 0 where it was not measured."""

    arms: list[Arm]
    latency: Array
    """Of quality and decode latency."""
    kv: Array
    """Of quality and KV bytes a token."""
    both: Array
    """Of all three."""
    draws: Draws
    kv_bytes: Array

    def of(self, arm: Arm) -> tuple[float, float, float]:
        """The arm's shares: latency, KV bytes, all three."""
        i = next(i for i, a in enumerate(self.arms) if a is arm)
        return float(self.latency[i]), float(self.kv[i]), float(self.both[i])


def fronts(arms: list[Arm], judgement: Judgement) -> Fronts:
    """Membership of the fronts at the headline context and batch."""
    timings: list[tuple[Cost, Point] | None] = [
        (a.cost, a.decode) if a.cost and a.decode else None for a in arms
    ]
    drawn = draw(arms, judgement, timings)
    kv_bytes = np.array([a.kv_bytes for a in arms])
    kv = np.broadcast_to(kv_bytes, drawn.quality.shape)
    return Fronts(
        arms=arms,
        latency=membership(np.stack([drawn.quality, drawn.latency], axis=2)),
        kv=membership(np.stack([drawn.quality, kv], axis=2)),
        both=membership(np.stack([drawn.quality, drawn.latency, kv], axis=2)),
        draws=drawn,
        kv_bytes=kv_bytes,
    )
