"""What a study varies besides the layout: each combination of it is a condition.

Arms are compared within one condition only.
"""

from collections.abc import Iterable
from typing import Any

from headcount.analysis.arms import arm_key
from headcount.study.records import Record

# The sections of a configuration that decide a result, less what only says how it is computed.
SCIENTIFIC = ("model", "task", "control", "optim", "trainer")
OPERATIONAL = {
    "trainer.accelerator",
    "trainer.compile",
    "trainer.devices",
    "trainer.strategy",
    "trainer.threads",
    "task.eval_batch_size",
}
# What a layout is made of, so that these never make a condition.
OF_LAYOUT = {
    "model.attention",
    "model.n_heads",
    "model.n_kv_heads",
    "model.kv_group_size",
    "model.d_head",
    "model.heads",
    "model.d_latent",
    "model.d_rope",
}
LEARNING_RATE = "optim.lr"


def conditions(
    records: list[Record], flat: dict[str, dict[str, Any]]
) -> tuple[dict[str, str], list[str]]:
    """Each run's condition in words, and the keys that go along with the layout.

    flat: each run's `scientific` configuration.
    """
    keys, tied = _condition_keys(records, flat)
    named = {
        run_id: ", ".join(f"{_short(key)} {values[key]}" for key in keys if key in values)
        for run_id, values in flat.items()
    }
    return named, tied


def flatten(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested configuration to dotted keys; lists become their text."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = str(value) if isinstance(value, list) else value
    return flat


def scientific(config: dict[str, Any]) -> dict[str, Any]:
    """The flat keys that decide a result, apart from the layout's own."""
    flat = flatten({name: config[name] for name in SCIENTIFIC if name in config})
    return {k: v for k, v in flat.items() if k not in OPERATIONAL and k not in OF_LAYOUT}


def _condition_keys(
    records: list[Record], flat: dict[str, dict[str, Any]]
) -> tuple[list[str], list[str]]:
    """The fewest keys that tell the conditions apart, and the keys that go along with the layout.

    A key that is the same in all runs of each layout cannot be told from the layout's effect: it is
    no condition but part of the layout (a d_ff widened to match parameters), or a confound.
    """
    layouts = [arm_key(r.layout) for r in records]
    columns = {
        key: [flat[r.run_id].get(key) for r in records]
        for key in sorted({key for values in flat.values() for key in values})
        if key != LEARNING_RATE
    }
    varying = {key: column for key, column in columns.items() if len(set(column)) > 1}
    first = ("task.name", "control.name", "model.d_model")
    order = [k for k in first if k in varying] + [k for k in varying if k not in first]
    # A loss of one task is no loss of another: however they lie, two tasks are two conditions.
    apart = ("task.name", "model.d_model")
    tied = [k for k in order if k not in apart and _follows(varying[k], layouts)]
    keys: list[str] = []
    for key in order:
        chosen = list(zip(*(varying[k] for k in keys), strict=True)) or [()] * len(records)
        if key not in tied and not _follows(varying[key], chosen):
            keys.append(key)
    # What follows from the conditions is no confound (a task's own batch size).
    chosen = list(zip(*(varying[k] for k in keys), strict=True)) or [()] * len(records)
    return keys, [k for k in tied if not _follows(varying[k], chosen)]


def _follows(column: list[Any], groups: Iterable[Any]) -> bool:
    """Whether a column has one value in each group."""
    value: dict[Any, Any] = {}
    return all(value.setdefault(g, v) == v for g, v in zip(groups, column, strict=True))


def _short(key: str) -> str:
    """A key as a person says it: `task.name` is the task, `model.d_model` d_model."""
    section, _, leaf = key.partition(".")
    return section if leaf == "name" else leaf
