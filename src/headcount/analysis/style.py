"""One look for every picture: a colour and a marker for each way of sharing KV heads.

Okabe and Ito's colours are told apart by colour-blind people, and the markers carry the same
distinction without colour.
"""

from dataclasses import dataclass

from headcount.analysis.evidence import Arm, grouping


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
_GQA = (
    ("#009E73", "s", "square"),
    ("#CC79A7", "D", "diamond"),
    ("#E69F00", "v", "triangle-down"),
    ("#56B4E9", "P", "cross"),
    ("#000000", "X", "x"),
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
        else:
            colour = _GQA[grouped.index(name) % len(_GQA)]
        chosen[name] = Look(name, *colour)
    return chosen


def short_label(arm: Arm) -> str:
    """A layout's label beside a point, where the legend already says the kind: `h8/kv2`."""
    return arm.label.partition(" ")[2]
