"""What `headcount prune` and `headcount uptrain` may be asked: `key=value`, each checked before anything
is written."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from headcount.errors import RequestError, did_you_mean
from headcount.heads.order import Head
from headcount.heads.record import Order
from headcount.heads.surgery import Pooling
from headcount.shape import ModelShape

ALPHA = 0.05
"""The share of the original steps that uptraining takes (Ainslie et al. 2023, section 3.1)."""


@dataclass(frozen=True)
class PruneRequest:
    """heads: those to cut out. Otherwise `keep` heads stay, or as few as lose less than the margin,
    chosen in the order `by`. alpha: share of the original steps to train for afterwards."""

    heads: tuple[Head, ...] | None
    keep: int | None
    by: Order
    alpha: float


@dataclass(frozen=True)
class UptrainRequest:
    n_kv_heads: int
    how: Pooling
    alpha: float


def prune_request(words: Sequence[str], shape: ModelShape) -> PruneRequest:
    """Read the words of a command about a model of this shape. RequestError where one is wrong."""
    given = _pairs(words, ("heads", "keep", "by", "alpha"))
    if not given.keys() & {"heads", "keep", "by"}:
        raise RequestError(
            "prune: nothing to cut out; valid: heads=0.1,1.3 (layer.head), keep=N, or by=importance"
        )
    if "heads" in given and given.keys() & {"keep", "by"}:
        other = "keep" if "keep" in given else "by"
        raise RequestError(
            f"heads={given['heads']} with {other}={given[other]}: the heads are chosen already; "
            "give one of them"
        )
    by = _choice("by", given.get("by", "importance"), get_args(Order))
    total = sum(layer.n_heads for layer in shape.layer_layouts)
    keep = _whole("keep", given["keep"], 1, total - 1) if "keep" in given else None
    heads = _heads(given["heads"], shape) if "heads" in given else None
    return PruneRequest(heads, keep, by, _alpha(given.get("alpha", "0")))  # type: ignore[arg-type]


def uptrain_request(words: Sequence[str]) -> UptrainRequest:
    """Read the words of a command. RequestError where one is wrong."""
    given = _pairs(words, ("model.n_kv_heads", "how", "alpha"))
    if "model.n_kv_heads" not in given:
        raise RequestError("uptrain: model.n_kv_heads is missing; valid: model.n_kv_heads=2, say")
    how = _choice("how", given.get("how", "mean"), get_args(Pooling))
    n_kv_heads = _whole("model.n_kv_heads", given["model.n_kv_heads"], 1, None)
    return UptrainRequest(n_kv_heads, how, _alpha(given.get("alpha", str(ALPHA))))  # type: ignore[arg-type]


def _pairs(words: Sequence[str], keys: Sequence[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key not in keys:
            raise RequestError(
                f"{word}: unknown{did_you_mean(key, keys)}; valid: {', '.join(f'{k}=…' for k in keys)}"
            )
        if key in given:
            raise RequestError(f"{key}={value}: given twice; valid: once")
        given[key] = value
    return given


def _heads(text: str, shape: ModelShape) -> tuple[Head, ...]:
    heads = []
    layers = shape.layer_layouts
    for word in text.split(","):
        layer, dot, head = word.partition(".")
        if not (dot and layer.isdecimal() and head.isdecimal()) or not (
            int(layer) < len(layers) and int(head) < layers[int(layer)].n_heads
        ):
            counts = ", ".join(str(layer.n_heads) for layer in layers)
            raise RequestError(
                f"heads={text}: {word or 'nothing'} is no head of the run; valid: layer.head from 0, "
                f"layers have {counts} heads"
            )
        heads.append((int(layer), int(head)))
    if len(set(heads)) == sum(layer.n_heads for layer in layers):
        raise RequestError(f"heads={text}: all heads of the model; valid: all but one")
    return tuple(dict.fromkeys(heads))


def _choice(key: str, value: str, valid: Sequence[str]) -> str:
    if value not in valid:
        raise RequestError(f"{key}={value}{did_you_mean(value, valid)}: valid: {', '.join(valid)}")
    return value


def _whole(key: str, value: str, low: int, high: int | None) -> int:
    if not value.isdecimal() or int(value) < low or (high is not None and int(value) > high):
        limits = f"{low} to {high}" if high is not None else f"a whole number from {low} on"
        raise RequestError(f"{key}={value}: valid: {limits}")
    return int(value)


def _alpha(value: str) -> float:
    try:
        share = float(value)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 10:
        raise RequestError(f"alpha={value}: valid: a share of the run's steps, 0 to 10")
    return share
