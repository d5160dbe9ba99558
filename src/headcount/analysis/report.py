"""The report of a study: one page that opens from disk, a table, and pictures for a paper.

report/index.html          everything, self-contained
       table.csv           one row a run, the pinned keys
       figures/*.png       sized for a column of a paper
"""

import datetime
import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from headcount import __version__
from headcount.analysis import evidence as evidence_
from headcount.analysis import figures, interactive, summary, verdicts
from headcount.analysis.evidence import Evidence, flatten
from headcount.analysis.figures import Picture
from headcount.analysis.verdicts import Judgement
from headcount.study.records import Record
from headcount.study.store import Study, write_atomically

__all__ = ["build", "summary_table"]
summary_table = summary.summary_table


@dataclass(frozen=True)
class Chapter:
    """One condition of the study on the page."""

    title: str
    sentences: list[str]
    judgement: Judgement
    rows: list[summary.Row]
    pictures: list[Picture]
    specs: dict[str, Any]


def build(study: Study) -> Path:
    """Write the study's report from its records; returns the page's path."""
    evidence = evidence_.load(study)
    study.report.mkdir(parents=True, exist_ok=True)
    write_atomically(study.report / "table.csv", evidence.runs.write_csv())
    chapters = [
        _chapter(evidence, condition, study.report / "figures", first=place == 0)
        for place, condition in enumerate(evidence.conditions)
    ]
    page = study.report / "index.html"
    write_atomically(page, _page(evidence, chapters))
    return page


def _chapter(evidence: Evidence, condition: str, folder: Path, *, first: bool) -> Chapter:
    judgement = verdicts.judge(evidence, condition)
    # Pictures of the other conditions lie in folders named by them.
    place = (
        folder if first else folder / condition.replace(" ", "_").replace(",", "").replace("/", "-")
    )
    return Chapter(
        title=condition,
        sentences=verdicts.sentences(judgement),
        judgement=judgement,
        rows=summary.rows(evidence, judgement),
        pictures=figures.draw(evidence, judgement, place),
        specs=interactive.figures(evidence, judgement),
    )


def _page(evidence: Evidence, chapters: list[Chapter]) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from plotly.offline import get_plotlyjs

    environment = Environment(
        loader=PackageLoader("headcount.analysis", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    files = resources.files("headcount.analysis") / "page"
    return environment.get_template("page.html").render(
        study=evidence.study.name,
        written=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=__version__,
        evidence=evidence,
        metric=evidence.metric,
        chapters=chapters,
        facts=_facts(evidence),
        warnings=evidence.warnings,
        unfinished=[r for r in evidence.records if r.status != "completed"],
        columns=_columns(evidence),
        runs=evidence.runs.rows(named=True),
        shown=_shown,
        specs=_json({f"c{i}-{k}": v for i, c in enumerate(chapters) for k, v in c.specs.items()}),
        style=(files / "page.css").read_text(encoding="utf-8"),
        script=(files / "page.js").read_text(encoding="utf-8"),
        plotly=get_plotlyjs() if any(c.specs for c in chapters) else "",
    )


def _json(value: Any) -> str:
    """JSON that may stand inside a script element."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


_SHOWN = (
    "status",
    "label",
    "condition",
    "seed",
    "lr",
    "quality/val_loss",
    "quality/test_loss",
    "quality/test_accuracy",
    "latency/decode_ms_per_token_p50",
    "kv_cache/bytes_per_token",
    "training/tokens",
    "training/tokens_per_s",
)


def _columns(evidence: Evidence) -> list[str]:
    """Columns of the page's run table: those with something to tell; the rest is in table.csv."""
    several = len(evidence.conditions) > 1
    return [
        name
        for name in _SHOWN
        if name in evidence.runs.columns and (name != "condition" or several)
    ]


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.5g}" if abs(value) < 1e5 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _facts(evidence: Evidence) -> list[tuple[str, list[tuple[str, str]]]]:
    """Protocol and environment: what is the same everywhere once, what differs with its values."""
    records = evidence.records
    tables = [
        ("Training protocol", [_protocol(r) for r in records]),
        ("Training environment", [flatten(r.environment) for r in records]),
        ("Code", [flatten(r.code) for r in records]),
    ]
    costs = [
        {"device": c.device, "dtype": c.dtype, "backend": c.backend}
        | {"memory method": c.memory.method, "measured": c.measured[:10]}
        | flatten(c.protocol)
        for c in evidence.costs
    ]
    tables.append(("Cost protocol", costs))
    tables.append(("Cost environment", [flatten(c.environment) for c in evidence.costs]))
    return [(title, _common(found)) for title, found in tables if found]


def _protocol(record: Record) -> dict[str, Any]:
    kept = ("model", "task", "control", "optim", "trainer")
    flat = flatten({k: v for k, v in record.config.items() if k in kept})
    return {k: v for k, v in flat.items() if k not in evidence_.OF_LAYOUT}


def _common(found: list[dict[str, Any]], most: int = 6) -> list[tuple[str, str]]:
    """Each key with its value, or with the values it takes over the records."""
    facts = []
    for key in dict.fromkeys(k for one in found for k in one):
        values = list(dict.fromkeys(str(one[key]) for one in found if key in one))
        more = f" and {len(values) - most} more" if len(values) > most else ""
        facts.append((key, "; ".join(values[:most]) + more))
    return facts
