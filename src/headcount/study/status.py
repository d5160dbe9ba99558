"""How far a study is, told from its plan and its records: once, or live while runs are at work."""

import os
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headcount.study.estimate import duration
from headcount.study.records import Record
from headcount.study.store import Study
from headcount.study.watch import console

LISTED = 30
"""Runs shown; failures first, then those at work."""

REFRESH_SECONDS = 2.0

ORDER = ("damaged", "failed", "diverged", "interrupted", "running", "not started")


@dataclass
class Line:
    """One run that is not complete."""

    run_id: str
    layout: str
    seed: str
    status: str
    done: int
    steps: int
    reason: str


@dataclass
class State:
    """A study at one moment."""

    counts: Counter[str] = field(default_factory=Counter)
    lines: list[Line] = field(default_factory=list)
    done: int = 0
    steps: int = 0
    costs: int = 0
    unread: list[str] = field(default_factory=list)
    """What is wrong with each damaged cost record."""


def show(study: Study) -> None:
    """Print the runs that are not complete and a line that counts all; on a terminal, while any run is
    at work, live until none is."""
    out = console()
    state = look(study)
    if out.is_terminal and not os.environ.get("CI") and state.counts["running"]:
        began, first = time.monotonic(), state.done
        with Live(_render(study, state, None), console=out, refresh_per_second=2) as live:
            while state.counts["running"]:
                time.sleep(REFRESH_SECONDS)
                state = look(study)
                rate = (state.done - first) / (time.monotonic() - began)
                live.update(_render(study, state, rate))
        return
    out.print(_render(study, state, None), soft_wrap=True)


def look(study: Study) -> State:
    """Read the study."""
    damaged: dict[Path, str] = {}
    state = State(costs=sum(1 for _ in study.cost_records(damaged)), unread=[*damaged.values()])
    damaged.clear()
    planned = {p["run_id"]: p for p in study.planned()}
    records = {r.run_id: r for r in study.records(damaged)}
    reasons = {path.parent.name: reason for path, reason in damaged.items()}
    for run_id in dict.fromkeys([*planned, *records, *reasons]):
        record = records.get(run_id)
        if record is not None:
            line = _line(study, record)
        else:
            line = _recordless(run_id, planned.get(run_id, {}), reasons.get(run_id))
        state.counts[line.status] += 1
        state.done += line.done
        state.steps += line.steps
        if line.status != "completed":
            state.lines.append(line)
    state.lines.sort(key=lambda line: ORDER.index(line.status))
    return state


def _recordless(run_id: str, planned: dict[str, Any], damage: str | None) -> Line:
    """A run without a record that can be read: what the plan says of it, which an older plan may
    not."""
    layout, seed = planned.get("layout", "?"), str(planned.get("seed", "?"))
    status = "damaged" if damage else "not started"
    return Line(run_id, layout, seed, status, 0, planned.get("steps", 0), damage or "")


def _line(study: Study, record: Record) -> Line:
    status, reason = str(record.status), record.error.message if record.error else ""
    if record.status == "running":
        owner = study.holder(record.run_id)
        status = "running" if owner else "interrupted"
        reason = f"on {owner.host}" if owner else "its process is gone; the same command goes on"
    return Line(
        record.run_id,
        record.layout.label,
        str(record.config["seed"]),
        status,
        record.training.steps,
        record.config["trainer"]["max_steps"],
        reason,
    )


def _render(study: Study, state: State, rate: float | None) -> RenderableType:
    parts: list[RenderableType] = []
    if state.lines:
        table = Table("run", "layout", "seed", "status", "steps", "reason", box=None)
        for line in state.lines[:LISTED]:
            steps = f"{line.done:,}/{line.steps:,}"
            table.add_row(
                line.run_id, line.layout, line.seed, line.status, steps, Text(line.reason)
            )
        parts.append(table)
        if len(state.lines) > LISTED:
            parts.append(Text(f"{len(state.lines) - LISTED:,} more that are not complete"))
    summary = ", ".join(f"{n} {status}" for status, n in sorted(state.counts.items()) if n)
    share = f"; {state.done:,} of {state.steps:,} steps" if state.steps > state.done else ""
    if rate:
        left = duration((state.steps - state.done) / rate)
        share += f", {rate:,.0f} a second, about {left} left"
    parts.append(
        Text(f"study {study.folder}: {summary or 'no runs'}{share}; {state.costs} cost records")
    )
    return Group(*parts, *map(Text, state.unread))
