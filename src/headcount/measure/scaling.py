"""How latency grows with the context, and from which context sharing KV heads pays. No torch.

Prefill takes t = fixed + linear·T + quadratic·T²: launches, then the weights' products, then the
scores of attention, which are quadratic for every number of heads. Decode at a context takes
t = fixed + linear·T: launches and weights, then the cached keys and values.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from headcount.measure.compare import Phase, compare
from headcount.study.records import Cost


@dataclass(frozen=True)
class ContextFit:
    """Milliseconds as a polynomial in the context, no coefficient below zero."""

    fixed_ms: float
    linear_ms: float
    """Per token of context."""
    quadratic_ms: float
    """Per squared token of context; 0 for decode."""

    def ms(self, context: int) -> float:
        return self.fixed_ms + self.linear_ms * context + self.quadratic_ms * context**2

    def overhead_share(self, context: int) -> float:
        """Share of the time that does not depend on the context: what hides an effect of heads."""
        return self.fixed_ms / self.ms(context)

    def quadratic_share(self, context: int) -> float:
        """Share of a prefill's time spent on scores."""
        return self.quadratic_ms * context**2 / self.ms(context)

    def exponent(self, context: int) -> float:
        """Local exponent d log t / d log T at a context: 1 where linear work rules, 2 where scores
        do."""
        growing = self.linear_ms * context + 2 * self.quadratic_ms * context**2
        return growing / self.ms(context)


def fit_context(cost: Cost, phase: Phase, batch_size: int) -> ContextFit | None:
    """Fit a phase's medians over the measured contexts, each weighted alike in relative terms.

    None where there are too few contexts: prefill needs three, decode two.
    """
    places = sorted(
        (p.context, p.p50_ms)
        for p in cost.points
        if p.phase == phase and p.batch_size == batch_size
    )
    degree = 2 if phase == "prefill" else 1
    if len(places) <= degree:
        return None
    context, ms = np.array(places, dtype=float).T
    # Columns scaled to the largest context, or T² would dwarf the rest in the solver.
    powers = (context[:, None] / context.max()) ** np.arange(degree + 1)
    scaled, _ = nnls(powers / ms[:, None], np.ones_like(ms))
    coefficients = scaled / context.max() ** np.arange(degree + 1)
    return ContextFit(*np.pad(coefficients, (0, 2 - degree)).tolist())


def fitted_exponent(contexts: Sequence[int], ms: Sequence[float]) -> float:
    """Slope of log time over log context, by least squares."""
    slope, _ = np.polyfit(np.log(contexts), np.log(ms), 1)
    return float(slope)


def pays_from(base: Cost, other: Cost, batch_size: int, phase: Phase = "decode") -> int | None:
    """The smallest measured context from which `other` is faster than `base`, there and at every
    larger one; ties do not count. None where it never pays."""
    contexts = sorted({p.context for p in base.points if p.phase == phase}, reverse=True)
    found = None
    for context in contexts:
        comparison = compare(base, other, phase, context, batch_size)
        if comparison is None or comparison.verdict != "faster":
            break
        found = context
    return found
