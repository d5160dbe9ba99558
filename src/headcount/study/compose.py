"""The configurations of a sweep's points, as Hydra composes them, in a fraction of its time.

Hydra takes some 70 ms to compose a configuration. A sweep's points differ mostly in plain values of
known keys (`model.n_heads=4`), which can be put into a composed configuration as well. So Hydra
composes once for each distinct choice of everything else (groups, additions, deletions), and values
are put in afterwards. Where that could come out differently from Hydra's own order of things (one
key within another, interpolations), it does not happen: Hydra composes that point itself.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf
from pydantic import ValidationError

from headcount.config import Config, Orders, Section, parse
from headcount.errors import RequestError


class Composer:
    """Composes points over a sweep's master configuration."""

    def __init__(self, loader: Any, master: DictConfig) -> None:
        self.loader = loader
        self.master = master
        self._bases: dict[tuple[str, ...], Base] = {}
        self._parser = OverridesParser.create(config_loader=loader)
        # A sweep repeats few overrides in many points.
        self._read = functools.cache(self._read)  # type: ignore[method-assign]

    def __call__(self, overrides: Sequence[str]) -> Config:
        """The configuration of a point; RequestError if it is wrong, CombinationError if its values
        do not go together."""
        read = [self._read(line) for line in overrides]
        # A group's choice comes before every value, wherever it stands.
        if _nested(tuple(o.key for o in read if not o.is_group)):
            read = []
        values = [o for o in read if o.is_value]
        settled = {o.line for o in values}
        base = self._base(tuple(line for line in overrides if line not in settled))
        if not all(base.has(o.key) for o in values):  # Hydra says what is wrong with them
            base, values = self._base(tuple(overrides)), []
        return parse(base.with_values(values))

    def _read(self, line: str) -> "Setting":
        override = self._parser.parse_override(line)
        is_group = self.loader.repository.group_exists(override.key_or_group) and not isinstance(
            override.value(), dict
        )
        return Setting(
            line=line,
            key=override.key_or_group,
            value=override.value(),
            is_group=is_group,
            is_value=not is_group and _is_value(override),
        )

    def _base(self, overrides: tuple[str, ...]) -> "Base":
        if overrides not in self._bases:
            cfg = self.loader.load_sweep_config(self.master, list(overrides))
            self._refuse_swept_machinery(cfg, overrides)
            self._bases[overrides] = Base.of(cfg)
        return self._bases[overrides]

    def _refuse_swept_machinery(self, cfg: DictConfig, overrides: tuple[str, ...]) -> None:
        """A sweep has one sweeper and one launcher, chosen before its points are composed: a swept
        choice that sets them would be ignored without a word."""
        for part in ("sweeper", "launcher"):
            if cfg.hydra[part] != self.master.hydra[part]:
                swept = [o for o in overrides if self._read(o).is_group]
                raise RequestError(
                    f"{' '.join(swept)}: sets hydra.{part}, which a swept choice cannot; "
                    "choose it without a sweep"
                )


@functools.cache
def _nested(keys: tuple[str, ...]) -> bool:
    """Whether one of the keys lies within another, so that their order counts."""
    return any(b.startswith(f"{a}.") for a in keys for b in keys)


@dataclass(frozen=True)
class Setting:
    """An override, read."""

    line: str
    key: str
    value: Any
    is_group: bool
    """Whether it chooses from a group."""
    is_value: bool
    """Whether it sets a plain value, and nothing else."""


def _is_value(override: Override) -> bool:
    plain = not (override.is_add() or override.is_force_add() or override.is_delete())
    return plain and override.package is None and _is_plain(override.value())


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        return "${" not in value and value != "???"
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return not isinstance(value, dict)


@dataclass(frozen=True)
class Base:
    """A composed configuration in plain containers, its sections validated already where they can
    be: points that leave a section alone share it."""

    plain: dict[str, Any]
    sections: dict[str, Any]
    interpolated: bool

    @classmethod
    def of(cls, cfg: DictConfig) -> "Base":
        plain = run_part(cfg, resolve=False)
        interpolated = not _is_plain([*_leaves(plain)])
        return cls(plain, {} if interpolated else _sections(plain), interpolated)

    def has(self, key: str) -> bool:
        """Whether `key` leads to a value (and not to a section)."""
        node: Any = self.plain
        for part in key.split("."):
            if not isinstance(node, dict) or part not in node:
                return False
            node = node[part]
        return not isinstance(node, dict)

    def with_values(self, values: Sequence[Setting]) -> dict[str, Any]:
        """What `parse` takes, with these values put in."""
        changed = dict(self.plain)
        for setting in values:
            *parents, leaf = setting.key.split(".")
            node = changed
            for part in parents:
                node[part] = node = dict(node[part])
            node[leaf] = setting.value
        if self.interpolated:
            changed = OmegaConf.to_container(OmegaConf.create(changed), resolve=True)  # type: ignore[assignment]
        untouched = {k: s for k, s in self.sections.items() if changed[k] is self.plain[k]}
        return {**changed, **untouched}


def _leaves(node: Any) -> list[Any]:
    if isinstance(node, dict):
        return [leaf for child in node.values() for leaf in _leaves(child)]
    return [node]


def _sections(plain: dict[str, Any]) -> dict[str, Section]:
    """The sections that are valid as they stand."""
    sections: dict[str, Section] = {}
    for key, field in Config.model_fields.items():
        kind = field.annotation
        if (
            isinstance(kind, type)
            and issubclass(kind, Section)
            and isinstance(plain.get(key), dict)
        ):
            try:
                sections[key] = kind.model_validate(plain[key])
            except ValidationError:
                continue  # told, or mended by a point's own values, when the point is parsed
    return sections


def run_part(cfg: DictConfig, *, resolve: bool) -> dict[str, Any]:
    """What a composed configuration says of the run, in plain containers: all but Hydra's own part
    and the orders for the study."""
    own = [str(k) for k in cfg if k not in ("hydra", "experiment", *Orders.model_fields)]
    container = OmegaConf.to_container(OmegaConf.masked_copy(cfg, own), resolve=resolve)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}
