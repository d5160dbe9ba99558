"""Commands that would decide what is open: layouts in their setting again, with more of something."""

import re
import shlex
from collections import defaultdict
from pathlib import Path
from typing import Any

from headcount.analysis.arms import Arm
from headcount.analysis.conditions import OF_LAYOUT, OPERATIONAL, SCIENTIFIC, flatten
from headcount.analysis.evidence import Evidence, seed_of
from headcount.study.records import Record

MOST_NEW_SEEDS = 20
"""A command asks for no more at once: the spread is known better after these."""

_LAYOUT = re.compile(
    r"(seed|attention|model\.(n_heads|n_kv_heads|d_head|kv_group_size|d_latent|d_rope))="
)


def train(evidence: Evidence, arms: list[Arm], more: int) -> list[str]:
    """Train `more` new seeds of some layouts, in as few commands as can say it; none of what is made
    from another run, which has seeds only where that one has."""
    arms = [a for a in arms if a.layout.origin is None]
    first = max(map(seed_of, evidence.records)) + 1
    new = range(first, first + min(more, MOST_NEW_SEEDS))
    return _commands("train", evidence, arms, [f"seed={','.join(map(str, new))}"])


def measure(
    evidence: Evidence,
    arms: list[Arm],
    context: int | None,
    batch_size: int | None,
    repeats: int | None,
) -> list[str]:
    """Measure some layouts' cost; None leaves the protocol as it is configured. Pruned layers that
    differ are no layout that a command names."""
    arms = [a for a in arms if a.layout.heads is None]
    extra = []
    if context is not None:
        extra.append(f"measure.contexts=[{context}]")
    if batch_size is not None:
        extra.append(f"measure.batch_sizes=[{batch_size}]")
    if repeats is not None:
        extra.append(f"measure.repeats={repeats}")
    return _commands("measure", evidence, arms, extra)


def _commands(verb: str, evidence: Evidence, arms: list[Arm], extra: list[str]) -> list[str]:
    planned = {p["run_id"]: p["overrides"] for p in evidence.study.planned()}
    # Layouts that differ in nothing but the number of heads go into one command.
    groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for arm in arms:
        layout = arm.layout
        record = _record(evidence, arm)
        base = [o for o in planned.get(record.run_id) or _overrides(record) if not _LAYOUT.match(o)]
        if layout.kind == "mla":
            base += ["attention=mla", f"model.d_latent={layout.d_latent}"]
            base.append(f"model.d_rope={layout.d_rope}")
        if layout.n_kv_heads != layout.n_heads:
            base.append(f"model.n_kv_heads={layout.n_kv_heads}")
        if layout.n_heads * layout.d_head != layout.d_model:
            base.append(f"model.d_head={layout.d_head}")
        groups[*base, *_where(evidence, base)].append(layout.n_heads)
    commands = []
    for settings, heads in groups.items():
        own = [f"model.n_heads={','.join(map(str, sorted(heads)))}", *extra]
        several = any("," in o and "[" not in o for o in own)
        commands.append(
            shlex.join(["headcount", verb, *(["-m"] if several else []), *settings, *own])
        )
    return commands


def _record(evidence: Evidence, arm: Arm) -> Record:
    """A run of the arm, a reported one where there is one."""
    return next(
        r
        for r in evidence.records
        if r.layout == arm.layout and (not arm.run_ids or r.run_id in arm.run_ids)
    )


def _where(evidence: Evidence, base: list[str]) -> list[str]:
    """The overrides that lead to the study's own folder."""
    study, named = evidence.study, {o.partition("=")[0] for o in base}
    found = [] if named & {"study", "experiment"} else [f"study={study.name}"]
    if "paths.results" not in named and study.folder.parent != Path("results"):
        found.append(f"paths.results={study.folder.parent}")
    return found


def _overrides(record: Record) -> list[str]:
    """A record's whole setting as overrides, for a run that no plan names any more."""
    config = record.config
    flat = flatten({k: config[k] for k in SCIENTIFIC if k in config})
    groups = [
        f"{k}={config[k]['name']}" for k in ("task", "control") if "name" in config.get(k, {})
    ]
    skipped = OF_LAYOUT | OPERATIONAL | {"task.name", "control.name"}
    return groups + [f"{k}={_literal(v)}" for k, v in flat.items() if k not in skipped]


def _literal(value: Any) -> str:
    """A value as the override grammar reads it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
