"""The things compared: a layout's runs over seeds under one condition, and what quality means."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from headcount.analysis import statistics
from headcount.analysis.statistics import Spread
from headcount.analysis.tuning import LRChoice, Sensitivity
from headcount.analysis.words import listed
from headcount.errors import RequestError, did_you_mean
from headcount.study.records import Cost, Layout, Point


@dataclass(frozen=True)
class Metric:
    """What quality means in one condition."""

    key: str
    """The pinned key, `quality/test_loss`."""
    name: str
    unit: str
    """Empty for a fraction."""
    sign: Literal[1, -1]
    """+1 where lower is better, −1 where higher is: `sign * value` is minimised."""
    margin: float
    """The default equivalence margin: differences below it do not matter."""
    margin_reason: str
    loss_unit: str
    """Of every loss of these runs, also where quality is an accuracy."""

    @property
    def axis(self) -> str:
        """The label of an axis: name, unit and which way is better."""
        unit = f" ({self.unit})" if self.unit else ""
        return f"{self.name.capitalize()}{unit}, {'lower' if self.sign > 0 else 'higher'} is better"


LOSS_MARGINS = {
    # The smallest differences between layouts that papers call real are larger (MHA to MQA: 0.015
    # nats in Shazeer 2019, 0.021 for GQA-4 in Zadouri 2025), and repeats of one GPT-2-size run
    # differ less (sd 0.0019).
    "nats": (
        0.01,
        "0.01 nats is 1% of perplexity, below the differences between layouts that papers report",
    ),
    "NMSE": (0.01, "0.01 is a hundredth of the answer's variance, one point of R²"),
}
"""By the unit of a loss its equivalence margin, and why."""


def loss_metric(key: Literal["test_loss", "val_loss"], unit: str) -> Metric:
    """Quality as the loss of the test or of the validation data."""
    name = {"test_loss": "test loss", "val_loss": "validation loss"}[key]
    return Metric(f"quality/{key}", name, unit, 1, *LOSS_MARGINS[unit], unit)


def accuracy_metric(loss_unit: str) -> Metric:
    """Quality as the share of right answers."""
    reason = "0.01 is one answer in a hundred"
    return Metric("quality/test_accuracy", "test accuracy", "", -1, 0.01, reason, loss_unit)


@dataclass(frozen=True)
class Arm:
    """One layout under one condition: its completed runs, one value a seed, and its cost."""

    layout: Layout
    condition: str
    lr: float | None
    seeds: tuple[int, ...]
    """Seeds with a completed run, ascending."""
    values: NDArray[np.float64]
    """The metric of those runs, (len(seeds),)."""
    run_ids: tuple[str, ...]
    """Of those runs."""
    statuses: dict[str, int]
    """Its reported runs by status; those that only chose a learning rate are not among them."""
    cost: Cost | None
    """Measured in the set-up that the study's figures share."""
    costs: tuple[Cost, ...] = ()
    """Every cost record of this layout, whatever the device, dtype and grid."""
    lr_choice: LRChoice = "given"
    sensitivity: Sensitivity | None = None
    """How its validation loss takes to the learning rate; None where one was tried."""
    slices: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    """Test loss on named parts of the test tokens, each (len(seeds),)."""

    @property
    def label(self) -> str:
        return self.layout.label

    @property
    def mean(self) -> float:
        return float(self.values.mean()) if len(self.values) else float("nan")

    @cached_property
    def by_seed(self) -> dict[int, float]:
        return dict(zip(self.seeds, self.values.tolist(), strict=True))

    @property
    def decode(self) -> Point | None:
        """The decode step at the protocol's headline context and batch."""
        if self.cost is None:
            return None
        protocol = self.cost.protocol
        return self.cost.point(
            "decode", protocol["headline_context"], protocol["headline_batch_size"]
        )

    @property
    def decode_ms(self) -> float:
        """Median milliseconds a decode step; NaN where it was not measured."""
        return self.decode.p50_ms if self.decode else float("nan")

    @property
    def kv_bytes(self) -> float:
        """KV-cache bytes a token of one sequence; NaN where it was not measured."""
        return float(self.cost.kv_cache.bytes_per_token) if self.cost else float("nan")

    @property
    def n_params(self) -> int | None:
        return self.cost.compute.n_params if self.cost else None


DERIVED = 10**10
"""The sort keys of what was not trained from scratch begin here, behind all others."""

ORIGINS = ("pruned", "converted", "uptrained")


def grouping(layout: Layout) -> tuple[int, str]:
    """How query heads share KV heads, as a sort key and a name; each is one line of a figure.

    One head is MHA's first point. GQA goes by query heads per KV head, which is the knob that
    `attention=gqa` has. Models that were not trained from scratch are lines of their own.
    """
    if layout.origin is not None:
        made = layout.origin.split()[0]
        return DERIVED + ORIGINS.index(made), made.capitalize()
    if layout.kind in ("single", "mha"):
        return 0, "MHA"
    if layout.kind == "gqa":
        size = layout.n_heads // layout.n_kv_heads
        return size, f"GQA, {size} query heads per KV head"
    return 10**9 + (layout.kind == "mla"), layout.kind.upper()


def check_reference(label: str, arms: list[Arm]) -> None:
    """RequestError, with the labels that would be valid, where no arm has this one."""
    labels = list(dict.fromkeys(arm.label for arm in arms))
    if label not in labels:
        raise RequestError(
            f"reference={label}: no such layout in the study{did_you_mean(label, labels)}; "
            f"valid: {listed(labels, most=30)}"
        )


def spread_of(arms: list[Arm]) -> Spread:
    """The spread of the arms of one condition, in their order."""
    seeds = sorted({s for a in arms for s in a.seeds})
    rows = [[a.by_seed.get(s, np.nan) for s in seeds] for a in arms]
    return statistics.spread(np.array(rows, dtype=float).reshape(len(arms), len(seeds)))


def shape_key(layout: Layout) -> tuple[int | str, ...]:
    """What makes two layouts the same, for their costs."""
    sizes = (layout.n_heads, layout.n_kv_heads, layout.d_head, layout.d_latent, layout.d_rope)
    return layout.d_model, *sizes, layout.kind, str(layout.heads)


def arm_key(layout: Layout) -> tuple[int | str, ...]:
    """What makes the runs of one arm: the layout and where its weights come from. Pruned models go by
    how many heads are left, as each seed has its own to spare; their label says it."""
    if layout.heads is not None:
        return layout.d_model, layout.d_head, layout.label
    return *shape_key(layout), layout.origin or ""
