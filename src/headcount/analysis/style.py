"""One look for every picture: a colour and a marker for each way of sharing KV heads.

Okabe and Ito's colours are told apart by colour-blind people, and the markers carry the same
distinction without colour.
"""

from dataclasses import dataclass
from math import ceil, floor, log2, log10

from headcount.analysis.arms import DERIVED, Arm, grouping


@dataclass(frozen=True)
class Look:
    """How one KV grouping is drawn."""

    name: str
    colour: str
    marker: str
    """Matplotlib's name of the marker."""
    symbol: str
    """Plotly's name of the same marker."""


_MHA = ("#0072B2", "o", "circle")
_MQA = ("#D55E00", "^", "triangle-up")
_MLA = ("#56B4E9", "P", "cross")
_DERIVED = (
    ("#332288", "*", "star"),
    ("#AA4499", "p", "pentagon"),
    ("#882255", "h", "hexagon"),
)
_GQA = (
    ("#009E73", "s", "square"),
    ("#CC79A7", "D", "diamond"),
    ("#E69F00", "v", "triangle-down"),
    ("#7F7F7F", "X", "x"),
)


def looks(arms: list[Arm]) -> dict[str, Look]:
    """A look for each KV grouping among the arms, by its name, in the order of the legend."""
    found = dict(sorted({grouping(arm.layout) for arm in arms}))
    grouped = [name for order, name in found.items() if 0 < order < 10**9]
    chosen = {}
    for order, name in found.items():
        if order == 0:
            colour = _MHA
        elif order == 10**9:
            colour = _MQA
        elif order >= DERIVED:
            colour = _DERIVED[order - DERIVED]
        elif order > 10**9:
            colour = _MLA
        else:
            colour = _GQA[grouped.index(name) % len(_GQA)]
        chosen[name] = Look(name, *colour)
    return chosen


def short_label(arm: Arm) -> str:
    """A layout's label beside a point, where the legend already says the kind: `h8/kv2`."""
    return arm.label.partition(" ")[2]


def shade(colour: str, place: int, of: int) -> str:
    """A lighter shade of `#rrggbb`: the first of `of` is the colour itself, the last half white."""
    share = 0.5 * place / max(of - 1, 1)
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(p + (255 - p) * share):02x}" for p in parts)


def round_ticks(low: float, high: float) -> list[float]:
    """Round numbers for a logarithmic axis from `low` to `high`, a little beyond on both sides."""
    spread = high / low
    steps: tuple[float, ...] = (1, 1.5, 2, 3, 4, 5, 6, 8)
    if spread > 8:
        steps = (1, 2, 5) if spread < 1000 else (1,)
    decades = range(floor(log10(low)) - 1, floor(log10(high)) + 2)
    ticks = [float(f"{step}e{decade}") for decade in decades for step in steps]
    return [t for t in ticks if low / 1.3 <= t <= high * 1.3]


def binary_ticks(low: float, high: float) -> list[float]:
    """Powers of two, at most eight, for bytes and tokens."""
    first, last = floor(log2(low)), ceil(log2(high))
    return [2.0**p for p in range(first, last + 1, max(1, ceil((last - first) / 7)))]
