"""Which layout wins where: a map over studies, conditions and devices, with how surely."""

from dataclasses import dataclass
from typing import Any

from headcount.analysis.chapters import Chapter

FACTORS = ("study", "task", "control", "d_model", "n_layers", "seq_len", "device")
"""What a map can lie over, in the order in which it is tried."""


@dataclass(frozen=True)
class Cell:
    """One place of the map."""

    choice: str
    """The recommended layout, without limits; empty where there is nothing to recommend."""
    certainty: float | None
    """Share of the draws that make this choice; None where one seed leaves it unknown."""
    best: str
    """The layout with the best mean."""
    chapter: int
    """Place of its chapter on the page."""


@dataclass(frozen=True)
class WinnerMap:
    """Rows × columns of cells; a place that no study covers is None."""

    row_title: str
    column_title: str
    rows: list[str]
    columns: list[str]
    cells: list[list[Cell | None]]


def winner_map(chapters: list[Chapter]) -> WinnerMap | None:
    """The map over what differs between chapters and devices; None where there is one place only.

    Columns are the last factor that differs, rows all others together.
    """
    places = [
        (_factors(chapter, device), _cell(chapter, device, i))
        for i, chapter in enumerate(chapters)
        for device in chapter.recommendations
    ]
    varying = [f for f in FACTORS if len({place.get(f) for place, _ in places}) > 1]
    if len({tuple(p.get(f) for f in varying) for p, _ in places}) < len(places):
        # Something else was varied: the condition in words tells the places apart.
        varying = [f for f in varying if f in ("study", "device")] + ["condition"]
        varying.sort(key=("study", "condition", "device").index)
    # A study's name adds nothing where what it varied tells the places apart.
    if "study" in varying and len(varying) > 1:
        rest = [f for f in varying if f != "study"]
        if len({tuple(p.get(f) for f in rest) for p, _ in places}) == len(places):
            varying = rest
    if len(places) < 2 or not varying:
        return None
    *across, last = varying
    rows = sorted({tuple(p.get(f) for f in across) for p, _ in places}, key=_natural)
    columns = sorted({p.get(last) for p, _ in places}, key=_natural)
    cells: list[list[Cell | None]] = [[None] * len(columns) for _ in rows]
    for place, cell in places:
        row = rows.index(tuple(place.get(f) for f in across))
        cells[row][columns.index(place.get(last))] = cell
    return WinnerMap(
        row_title=", ".join(across),
        column_title=last,
        rows=[", ".join(str(v) for v in row) for row in rows],
        columns=[str(c) for c in columns],
        cells=cells,
    )


def _natural(value: Any) -> tuple[Any, ...]:
    """Numbers by size, before words."""
    values = value if isinstance(value, tuple) else (value,)
    return tuple((0, v, "") if isinstance(v, int | float) else (1, 0, str(v)) for v in values)


def _factors(chapter: Chapter, device: str) -> dict[str, Any]:
    evidence = chapter.evidence
    arm = evidence.arms_of(chapter.judgement.condition)[0]
    config = next(r.config for r in evidence.records if r.layout == arm.layout)
    for record in evidence.records:
        if record.run_id in arm.run_ids:
            config = record.config
            break
    model, task = config.get("model", {}), config.get("task", {})
    return {
        "study": evidence.study.name,
        "condition": chapter.judgement.condition,
        "task": task.get("name"),
        "control": config.get("control", {}).get("name"),
        "d_model": arm.layout.d_model,
        "n_layers": model.get("n_layers"),
        "seq_len": task.get("seq_len"),
        "device": device,
    }


def _cell(chapter: Chapter, device: str, place: int) -> Cell:
    found = chapter.recommendations[device]
    best = chapter.judgement.best
    return Cell(found.choice or "", found.confidence, best.label if best else "", place)
