"""What an inspection comes to, in sentences."""

from headcount.analysis.words import listed, signed
from headcount.heads.order import fewest
from headcount.heads.record import Change, Inspection, Pruning

MARGIN = 0.01
"""A change of the loss below it does not matter: the margin that the study's report uses."""


def sentences(seen: Inspection) -> list[str]:
    """The findings, the most important first. None of them says what a head is for."""
    n_heads = sum(seen.heads)
    zero = [
        (layer, h, c) for layer, row in enumerate(seen.ablations["zero"]) for h, c in enumerate(row)
    ]
    found = [
        f"{seen.effective_heads:.1f} effective heads a layer of {seen.nominal_heads:g}: as many as "
        "differ in what they read (Vendi score of the CKA of their outputs)."
    ]
    if zero:
        layer, head, worst = max(zero, key=lambda found: found[2].loss)
        found.append(
            f"Without head {layer}.{head} the loss rises most, by {change_text(worst)} "
            f"{seen.loss_unit}."
        )
        small = [name(layer, h) for layer, h, c in zero if c.high is not None and c.high < MARGIN]
        found.append(
            f"{len(small)} of {n_heads} heads cost less than {MARGIN:g} {seen.loss_unit} each when "
            "cut out alone, by the upper end of their interval"
            + (f": {listed(small)}." if small else ".")
            + " Together they may cost more: heads stand in for one another."
        )
    if seen.importance is not None and (agreed := seen.agreement["zero"]).spearman is not None:
        found.append(
            f"Gradient importance and zero ablation rank the heads alike by a Spearman correlation "
            f"of {agreed.spearman:.2f} ({agreed.n_heads} heads, p = {agreed.p_value:.2g})."
        )
    return found


def pruning_sentences(seen: Pruning) -> list[str]:
    """How many heads can go, in each order."""
    found = []
    for order, removals in seen.orders.items():
        n = fewest(removals, MARGIN)
        how = "by gradient importance" if order == "importance" else "greedily"
        found.append(
            f"Cut out {how}, {n} of {seen.n_heads} heads go before the loss rises by {MARGIN:g} "
            f"{seen.loss_unit}, by the upper end of its interval."
        )
    return found


def name(layer: int, head: int) -> str:
    """`1.3`: the head as `headcount prune heads=` takes it."""
    return f"{layer}.{head}"


def change_text(change: Change) -> str:
    """`+0.12 ± 0.03`."""
    if change.high is None:
        return f"{change.loss:+.4f}".replace("-", "−")
    half = change.high - change.loss
    return f"{signed(change.loss, half)} ± {signed(half, half).lstrip('+')}"
