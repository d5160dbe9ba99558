"""The report of a study, or of several: one page that opens from disk, tables, and pictures.

report/index.html             everything, self-contained
       table.csv, .parquet    one row a run, the pinned keys
       table.md, table.tex    one row a layout, for a note and for a paper
       figures/*.png, *.svg   sized for a column of a paper
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from headcount.analysis import evidence as evidence_
from headcount.analysis import exports, figures, summary
from headcount.analysis.arms import check_reference
from headcount.analysis.chapters import Chapter, chapters_of
from headcount.analysis.conditions import OF_LAYOUT, SCIENTIFIC, flatten
from headcount.analysis.evidence import Evidence
from headcount.analysis.pages import render
from headcount.analysis.winners import WinnerMap, winner_map
from headcount.heads.record import PAGE as HEADS_PAGE
from headcount.study.records import Record
from headcount.study.store import Study, write_atomically

__all__ = ["build", "summary_table"]
summary_table = summary.summary_table


def build(
    studies: Study | Sequence[Study],
    folder: Path | None = None,
    *,
    reference: str | None = None,
    margin: float | None = None,
    pictures: int = 1,
) -> Path:
    """Write the report from records; returns the page's path.

    folder: by default the study's own `report`, for several studies `report` beside them. reference,
    margin: as `verdicts.judge` takes them, for every condition that has the reference. pictures:
    for how many conditions pictures for papers are drawn (some 2 s each), those with most runs first;
    the page shows all. RequestError for a reference that no condition has.
    """
    studies = [studies] if isinstance(studies, Study) else list(studies)
    if folder is None:
        folder = studies[0].report if len(studies) == 1 else studies[0].folder.parent / "report"
    found = [evidence_.load(study) for study in studies]
    if reference is not None:
        check_reference(reference, [a for e in found for a in e.arms])
    chapters = [
        chapter
        for evidence in found
        for chapter in chapters_of(evidence, reference, margin, several=len(studies) > 1)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    _tables(folder, found, chapters)
    drawn = _draw(folder / "figures", chapters, pictures)
    page = folder / "index.html"
    write_atomically(page, _page(found, chapters, drawn, folder))
    return page


def _tables(folder: Path, found: list[Evidence], chapters: list[Chapter]) -> None:
    runs = pl.concat([e.runs for e in found], how="diagonal_relaxed")
    write_atomically(folder / "table.csv", runs.write_csv())
    runs.write_parquet(folder / "table.parquet")
    write_atomically(folder / "table.md", "\n".join(exports.markdown(c) for c in chapters))
    write_atomically(folder / "table.tex", "\n".join(exports.latex(c) for c in chapters))


def _draw(folder: Path, chapters: list[Chapter], most: int) -> dict[int, str]:
    """Write the pictures; returns for each chapter drawn its folder, seen from the page.

    Pictures of an earlier report that this one does not draw are removed.
    """
    drawn, written = {}, set()
    for i in sorted(range(len(chapters)), key=lambda i: -chapters[i].n_runs)[:most]:
        # A study without conditions keeps its pictures in the folder itself.
        name = re.sub(r"[^A-Za-z0-9._-]+", "_", chapters[i].title)
        place = folder / name if name else folder
        for picture in chapters[i].pictures:
            written.update(figures.write(picture, place))
        drawn[i] = f"figures/{name}/" if name else "figures/"
    for path in [*folder.glob("*.*"), *folder.glob("*/*.*")]:
        if path not in written and path.stem in figures.STEMS and path.suffix in (".png", ".svg"):
            path.unlink()
            if path.parent != folder and not any(path.parent.iterdir()):
                path.parent.rmdir()
    return drawn


# -- the page ------------------------------------------------------------------------------------


def _page(
    found: list[Evidence], chapters: list[Chapter], drawn: dict[int, str], folder: Path
) -> str:
    winners: WinnerMap | None = winner_map(chapters)
    return render(
        "headcount.analysis",
        "page.html",
        {f"c{i}-{k}": v for i, c in enumerate(chapters) for k, v in c.specs.items()},
        title=", ".join(e.study.name for e in found),
        n_runs=sum(len(e.records) for e in found),
        found=found,
        several=len(found) > 1,
        chapters=chapters,
        drawn=drawn,
        winners=winners,
        facts=_facts,
        warnings=sum(len(e.warnings) for e in found),
        unfinished=[(e, r) for e in found for r in e.records if r.status != "completed"],
        run_href=lambda e, run_id: f"{os.path.relpath(e.study.runs, folder)}/{run_id}/",
        heads_href=lambda e, run_id: _heads_page(e, run_id, folder),
        columns=_columns(found),
        shown=_shown,
    )


def _heads_page(evidence: Evidence, run_id: str, folder: Path) -> str:
    """The page of a run's heads, seen from the report; empty where it was not inspected."""
    page = evidence.study.run_folder(run_id) / HEADS_PAGE
    return os.path.relpath(page, folder) if page.is_file() else ""


_SHOWN = (
    "study",
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


def _columns(found: list[Evidence]) -> list[str]:
    """Columns of the page's run table: those with something to tell; the rest is in table.csv."""
    there = {name for e in found for name in e.runs.columns}
    if len(found) == 1:
        there.discard("study")
    if all(len(e.conditions) < 2 for e in found):
        there.discard("condition")
    return [name for name in _SHOWN if name in there]


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.5g}" if abs(value) < 1e5 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _facts(evidence: Evidence) -> list[tuple[str, list[tuple[str, str]]]]:
    """Protocol and environment: what is the same everywhere once, what differs with its values."""
    records = evidence.records
    costs = [
        {"device": c.device, "dtype": c.dtype, "backend": c.backend}
        | {"memory method": c.memory.method, "measured": c.measured[:10]}
        | flatten(c.protocol)
        for c in evidence.costs
    ]
    tables = [
        ("Training protocol", [_protocol(r) for r in records]),
        ("Training environment", [flatten(r.environment) for r in records]),
        ("Code", [flatten(r.code) for r in records]),
        ("Cost protocol", costs),
        ("Cost environment", [flatten(c.environment) for c in evidence.costs]),
    ]
    return [(title, _common(found)) for title, found in tables if found]


def _protocol(record: Record) -> dict[str, Any]:
    kept = {k: v for k, v in record.config.items() if k in SCIENTIFIC}
    return {k: v for k, v in flatten(kept).items() if k not in OF_LAYOUT}


def _common(found: list[dict[str, Any]], most: int = 6) -> list[tuple[str, str]]:
    """Each key with its value, or with the values it takes over the records."""
    facts = []
    for key in dict.fromkeys(k for one in found for k in one):
        values = list(dict.fromkeys(str(one[key]) for one in found if key in one))
        more = f" and {len(values) - most} more" if len(values) > most else ""
        facts.append((key, "; ".join(values[:most]) + more))
    return facts
