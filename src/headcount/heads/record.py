"""What `headcount inspect` leaves behind of a run: heads/inspection.json in the run's folder.

No torch here: the study's report reads it beside the run's record. Lists by layer may differ in
length, as the layers of a pruned model do. Every interval is the normal 95% one over sequences, for
these weights; it says nothing of seeds.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field

from headcount.study.records import Strict

Ablation = Literal["zero", "mean", "resample"]
ABLATIONS: tuple[Ablation, ...] = ("zero", "mean", "resample")

SHARE = "share of attention"
"""The unit of scores from 0 to 1; their colours span all of it, so that a low score looks low."""

FILE, PAGE = "heads/inspection.json", "heads/index.html"
PRUNING = "heads/pruning.json"


class Score(Strict):
    """One figure of every head, [layer][head]; None where it could not be told."""

    title: str
    unit: str
    definition: str
    protocol: str
    mean: list[list[float | None]]
    half_width: list[list[float | None]]
    """Half the width of the interval."""


class Change(Strict):
    """What an ablation does: ablated minus whole, paired within the same sequences."""

    loss: float
    """Of the mean loss over scored tokens, in the run's `loss_unit`; above 0 is worse."""
    low: float | None
    high: float | None
    accuracy: float | None = None
    """Of the share answered right, where the task has an accuracy."""
    slices: dict[str, "SliceChange"] = Field(default_factory=dict)


class SliceChange(Strict):
    loss: float
    low: float | None
    high: float | None
    count: int
    """Scored tokens."""


class Pair(Strict):
    """Two heads of a layer, ablated together."""

    layer: int
    heads: tuple[int, int]
    change: Change


class Layer(Strict):
    """How alike the heads of one layer are."""

    jensen_shannon: list[list[float]]
    """Bits, [head][head]: mean over queries."""
    cka: list[list[float]]
    """[head][head]: linear CKA of outputs."""
    effective_heads: float
    """The Vendi score of `cka`."""


class Agreement(Strict):
    """Rank correlation of gradient importance with what an ablation really does, over all heads."""

    spearman: float | None
    """None where all heads tie, or there are fewer than three."""
    p_value: float | None
    n_heads: int


class Inspection(Strict):
    """Everything seen in one run's heads."""

    schema_: int = Field(1, alias="schema")
    run_id: str
    label: str
    checkpoint: str
    split: str
    n_sequences: int
    seq_len: int
    loss: float
    """Of the whole model on the sequences seen."""
    loss_unit: str
    heads: list[int]
    """Query heads of each layer."""
    scores: dict[str, Score]
    layers: list[Layer]
    ablations: dict[Ablation, list[list[Change]]] = Field(default_factory=dict)
    """[layer][head]."""
    pairs: dict[Ablation, list[Pair]] = Field(default_factory=dict)
    importance: Score | None = None
    agreement: dict[Ablation, Agreement] = Field(default_factory=dict)

    @property
    def nominal_heads(self) -> float:
        """Mean query heads a layer."""
        return sum(self.heads) / len(self.heads)

    @property
    def effective_heads(self) -> float:
        """Mean over layers."""
        return sum(layer.effective_heads for layer in self.layers) / len(self.layers)


Order = Literal["importance", "greedy"]
ORDERS: tuple[Order, ...] = ("importance", "greedy")


class Removal(Strict):
    """One point of a curve: this head and all before it cut out."""

    layer: int
    head: int
    kept: int
    """Query heads of the model that are left."""
    change: Change


class Pruning(Strict):
    """heads/pruning.json: the loss against the heads kept, as heads are cut out one after another."""

    schema_: int = Field(1, alias="schema")
    run_id: str
    label: str
    split: str
    n_sequences: int
    loss: float
    """Of the whole model."""
    loss_unit: str
    n_heads: int
    """Query heads of the whole model."""
    orders: dict[Order, list[Removal]]
    """importance: least important first, importance of the whole model. greedy: at each step the head
    without which the loss is least, those before it gone already."""


def read(run_folder: Path) -> Inspection | None:
    """The inspection of a run, or None where it was not inspected."""
    path = run_folder / FILE
    return Inspection.model_validate_json(path.read_bytes()) if path.exists() else None
