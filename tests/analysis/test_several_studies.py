"""Several studies and conditions on one page: the map of who wins where, and the tables."""

import re
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from headcount.analysis import evidence, report
from headcount.analysis.chapters import chapters_of
from headcount.analysis.exports import latex, markdown
from headcount.analysis.winners import winner_map
from headcount.errors import RequestError
from headcount.study.records import Record
from headcount.study.store import Study

from .conftest import layout_of, make_cost, make_record

Make = Callable[..., Study]


def width_study(winner: dict[tuple[int, int], int]) -> list[Record]:
    """By (d_model, seq_len) the number of heads that is better than the others by far."""
    return [
        make_record(
            layout_of(h, d_model=d),
            s,
            2.0 - 0.2 * (h == best) + 0.0001 * (s * h % 3),
            cost=make_cost(layout_of(h, d_model=d)),
            task__seq_len=t,
        )
        for (d, t), best in winner.items()
        for h in (2, 4, 8)
        for s in range(4)
    ]


def test_map_over_width_and_context(make_study: Make) -> None:
    winner = {(64, 128): 2, (64, 512): 4, (128, 128): 4, (128, 512): 8}
    found = evidence.load(make_study(width_study(winner)))
    table = winner_map(chapters_of(found, None, None, several=False))
    assert table is not None
    assert (table.row_title, table.rows) == ("d_model", ["64", "128"])
    assert (table.column_title, table.columns) == ("seq_len", ["128", "512"])
    cells = [[cell.choice if cell else "" for cell in row] for row in table.cells]
    assert cells == [["mha h2", "mha h4"], ["mha h4", "mha h8"]]
    assert all(
        cell and cell.certainty and cell.certainty > 0.99 for row in table.cells for cell in row
    )


def test_conditions_that_no_factor_tells_apart_keep_a_place_each(make_study: Make) -> None:
    records = [
        make_record(layout_of(h), s, 2.0 - 0.2 * (h == best), task__n_terms=n)
        for n, best in ((3, 2), (4, 4))
        for h in (2, 4)
        for s in range(3)
    ]
    found = evidence.load(make_study(records))
    table = winner_map(chapters_of(found, None, None, several=False))
    assert table is not None
    assert (table.column_title, table.columns) == ("condition", ["n_terms 3", "n_terms 4"])
    assert [c.choice for c in table.cells[0] if c] == ["mha h2", "mha h4"]


def test_map_over_studies_and_devices(make_study: Make) -> None:
    chapters = []
    for name in ("first", "second"):
        records = width_study({(64, 128): 4})
        gpu = [make_cost(layout_of(h), device="NVIDIA H100", decode_ms=0.1 * h) for h in (2, 4, 8)]
        study = make_study(records, gpu, name=name)
        chapters += chapters_of(evidence.load(study), None, None, several=True)
    table = winner_map(chapters)
    assert table is not None
    assert (table.row_title, table.rows) == ("study", ["first", "second"])
    assert table.columns == ["CPU AMD EPYC 9R14", "NVIDIA H100"]


def test_one_place_has_no_map(novel: Study) -> None:
    assert winner_map(chapters_of(evidence.load(novel), None, None, several=False)) is None


def test_page_of_two_studies(make_study: Make, tmp_path: Path) -> None:
    studies = [
        make_study(width_study({(64, 128): 2}), name="narrow"),
        make_study(width_study({(128, 128): 8}), name="wide"),
    ]
    page = report.build(studies, pictures=2)
    assert page == tmp_path / "report" / "index.html"
    text = page.read_text()
    assert "Which layout where" in text
    for study in studies:
        record = next(study.records())
        link = f"../{study.name}/runs/{record.run_id}/"
        assert f'href="{link}"' in text
        assert (page.parent / link).exists()
    table = pl.read_csv(page.parent / "table.csv")
    assert table.height == 24
    assert pl.read_parquet(page.parent / "table.parquet").columns == table.columns
    for study in studies:
        assert (page.parent / f"figures/{study.name}/quality_vs_heads.svg").exists()


def test_folder_reference_and_margin_can_be_chosen(novel: Study, tmp_path: Path) -> None:
    page = report.build(novel, tmp_path / "elsewhere", reference="mha h8", margin=0.5)
    assert page == tmp_path / "elsewhere" / "index.html"
    record, text = next(novel.records()), page.read_text()
    assert f'href="../{novel.name}/runs/{record.run_id}/"' in text
    assert "Δ from mha h8" in text
    assert "below ±0.5 nats." in text
    with pytest.raises(RequestError, match=r"reference=mha h9.*did you mean mha h8"):
        report.build(novel, reference="mha h9")


def test_markdown_table(novel: Study) -> None:
    chapter = chapters_of(evidence.load(novel), None, None, several=False)[0]
    lines = markdown(chapter).splitlines()
    assert lines[0].startswith("| Layout | Params | Test loss (nats) |")
    assert len({line.count("|") for line in lines[:11]}) == 1
    assert lines[2].startswith("| single h1 | 133k | ")
    assert "Δ from mha h4 within seeds" in lines[-1]


def test_latex_table(novel: Study) -> None:
    chapter = chapters_of(evidence.load(novel), None, None, several=False)[0]
    text = latex(chapter)
    assert text.count(r"\\") == 10
    assert r"$\pm$" in text
    assert not re.search(r"[^\x00-\x7f]", text)
    assert r"mqa h8/kv1 & 119k" in text


def test_written_tables(novel_report: Study) -> None:
    assert (novel_report.report / "table.md").read_text().startswith("| Layout")
    assert r"\toprule" in (novel_report.report / "table.tex").read_text()
