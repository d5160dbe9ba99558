"""The points that a sweep asks for: every combination of the values of its axes."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

from headcount.config import Orders
from headcount.errors import RequestError

Axes = dict[str, list[str]]
"""For each key the overrides that its values stand for: one where it is not swept."""


def points(
    arguments: Sequence[str],
    params: Mapping[str, Any],
    grids: Sequence[Mapping[str, Any]],
    loader: Any,
) -> Iterator[tuple[str, ...]]:
    """Every point, as the overrides that ask for it. `params` are axes of each of `grids`; an argument
    replaces the axis of its key in all of them. `loader` knows the choices that a glob stands for."""
    parser = OverridesParser.create(config_loader=loader)
    given = axes(arguments, parser)
    for key in [k for k in given if is_order(k)]:
        if len(given.pop(key)) > 1:
            raise RequestError(f"{key}: cannot be swept; valid: one value")
    for grid in grids or [{}]:
        lines = [f"{key}={value}" for key, value in {**params, **grid}.items()]
        joined = {**axes(lines, parser), **given}
        yield from itertools.product(*joined.values())


def is_order(key: str) -> bool:
    """Whether a key is of the study as a whole, not of its points."""
    return key.partition(".")[0] in Orders.model_fields


def axes(lines: Sequence[str], parser: OverridesParser) -> Axes:
    """The axes that overrides describe.

    Of a key given twice the last value holds, as everywhere in Hydra; but an axis is never lost so.
    """
    found: Axes = {}
    for override in parser.parse_overrides(list(lines)):
        key = override.get_key_element().lstrip("+~")
        meant = values(override)
        if not meant:
            raise RequestError(f"{override.input_line}: no value; valid: at least one")
        if key in found and max(len(meant), len(found[key])) > 1:
            raise RequestError(f"{key}: given twice; give one list, such as {key}=1,2")
        found[key] = meant
    return found


def values(override: Override) -> list[str]:
    """The overrides, one a value, that a swept override stands for; itself where it is not swept."""
    key = override.get_key_element()
    if override.is_interval_sweep():
        raise RequestError(
            f"{override.input_line}: a grid needs values, not an interval; valid: a list, a range, or "
            "a search (hydra/sweeper=optuna)"
        )
    if override.is_sweep_override():
        return [f"{key}={value}" for value in override.sweep_string_iterator()]
    if override.is_delete() and override.value() is None:
        return [key]
    return [f"{key}={override.get_value_element_as_str()}"]
