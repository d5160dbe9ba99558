"""The report's files, and the right words for studies that have little to tell."""

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import polars as pl
import pytest
from rich.console import Console

from headcount.analysis import figures as figures_
from headcount.analysis import report
from headcount.study.records import Record
from headcount.study.store import Study

from .conftest import layout_of, make_record

Make = Callable[..., Study]
PICTURES = {
    "quality_vs_heads",
    "difference_from_reference",
    "quality_vs_decode_latency",
    "quality_vs_kv_bytes",
    "decode_latency_vs_context",
    "prefill_latency_vs_context",
    "kv_cache_vs_context_and_batch",
    "learning_curves",
    "slices",
}


def page_of(study: Study) -> str:
    return report.build(study).read_text()


def printed(study: Study, width: int = 80) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(report.summary_table(study))
    return console.export_text()


def specs_of(page: str) -> dict[str, dict]:
    text = re.search(r'<script type="application/json" id="specs">(.*?)</script>', page, re.S)
    assert text
    return json.loads(text[1])


def test_files(novel_report: Study) -> None:
    novel = novel_report
    assert {p.stem for p in (novel.report / "figures").glob("*.png")} == PICTURES
    assert PICTURES <= figures_.STEMS
    table = pl.read_csv(novel.report / "table.csv")
    assert table.height == 27
    assert {"run_id", "quality/test_loss", "kv_cache/bytes_per_token"} <= set(table.columns)


def test_pictures_of_conditions_that_are_gone_are_removed_and_nothing_else(
    make_study: Make,
) -> None:
    def records(*widths: int) -> list[Record]:
        return [make_record(layout_of(h, d_model=d), 0, 2.0) for d in widths for h in (1, 2, 4)]

    study = make_study(records(64, 128))
    report.build(study, pictures=2)
    figures = study.report / "figures"
    assert {p.name for p in figures.iterdir()} == {"d_model_64", "d_model_128"}
    (figures / "d_model_64" / "mine.png").write_text("a user's own")
    (figures / "notes.svg").write_text("likewise")
    for record in records(128):
        (study.run_folder(record.run_id) / "record.json").unlink()
    report.build(study)
    left = {str(p.relative_to(figures)) for p in figures.rglob("*.*")}
    own = {f"quality_vs_heads.{kind}" for kind in ("png", "svg")}
    assert left == own | {"d_model_64/mine.png", "notes.svg"}
    assert not (figures / "d_model_128").exists()


def test_page_is_self_contained_and_light(novel_report: Study) -> None:
    page = (novel_report.report / "index.html").read_text()
    assert len(page.encode()) < 8e6
    # Nothing is fetched: no script, style, image or font from elsewhere.
    markup = re.sub(r"<script\b.*?</script>", "", page, flags=re.S)
    assert not re.search(r"""(?:src|href)=["'](?:https?:)?//""", markup)
    assert 'src="' not in markup


def test_page_says_the_verdict_first_and_links_every_run(novel_report: Study) -> None:
    page = (novel_report.report / "index.html").read_text()
    assert page.index("Lowest mean test loss") < page.index("<table")
    for record in novel_report.records():
        assert f'href="../runs/{record.run_id}/"' in page
        assert (novel_report.report / f"../runs/{record.run_id}/record.json").exists()


def test_figures_show_the_records_values(novel_report: Study) -> None:
    specs = specs_of((novel_report.report / "index.html").read_text())
    assert {name.removeprefix("c0-") for name in specs} == PICTURES
    mha = next(t for t in specs["c0-quality_vs_heads"]["data"] if t["name"] == "MHA")
    records = [r for r in novel_report.records() if r.layout.kind in ("single", "mha")]
    for i, heads in enumerate((1, 2, 4, 8, 16)):
        losses = [r.quality.test_loss for r in records if r.layout.n_heads == heads]
        assert mha["y"][i] == pytest.approx(np.mean(losses))
    assert all(bar > 0 for bar in mha["error_y"]["array"])


def test_definitions_state_where_latency_was_taken(novel_report: Study) -> None:
    page = (novel_report.report / "index.html").read_text()
    assert "context 256, batch 1, fp32, CPU AMD EPYC 9R14, kernel grouped matmul" in page


def test_no_run_yet(make_study: Make) -> None:
    study = make_study([])
    assert "No run yet" in page_of(study)
    assert "no run yet" in printed(study)


def test_nothing_completed(make_study: Make) -> None:
    study = make_study([make_record(layout_of(2), s, None, status="diverged") for s in range(2)])
    page = page_of(study)
    assert "No run has completed" in page
    assert page.count("<b>diverged</b>") == 2
    assert not list(study.report.glob("figures/*"))


def test_one_seed_without_costs(make_study: Make) -> None:
    study = make_study([make_record(layout_of(h), 0, 2.0 + h / 100) for h in (1, 2, 4)])
    page = page_of(study)
    assert "One seed has no spread" in page
    assert "nothing can be said about latency or memory" in page
    assert {p.stem for p in (study.report / "figures").glob("*.png")} == {"quality_vs_heads"}
    assert "undecided" in printed(study)


def test_one_layout(make_study: Make) -> None:
    study = make_study([make_record(layout_of(4), s, 2.0 + s / 100) for s in range(3)])
    assert "the only layout" in page_of(study)


def test_accuracy(make_study: Make) -> None:
    records = [
        make_record(layout_of(h), s, 0.1, accuracy=0.5 if h == 1 else 1.0)
        for h in (1, 2, 4)
        for s in range(3)
    ]
    study = make_study(records)
    assert "Test accuracy, higher is better" in json.dumps(specs_of(page_of(study)))
    assert "test accuracy" in printed(study)


def test_failed_runs_are_shown_with_their_error(make_study: Make) -> None:
    records: list[Record] = [
        make_record(layout_of(h), s, 2.0 + h / 100 + s / 50) for h in (2, 4) for s in range(3)
    ]
    records[0] = make_record(layout_of(2), 0, 50.0, status="failed")
    study = make_study(records)
    page = page_of(study)
    assert "<b>failed</b>: FloatingPointError: loss is NaN at step 100" in page
    assert "(2 of 3)" in printed(study)
    assert max(max(t["y"]) for t in specs_of(page)["c0-quality_vs_heads"]["data"]) < 3


def test_names_are_escaped(make_study: Make) -> None:
    layout = layout_of(2)
    layout.label = "<script>alert(1)</script>"
    study = make_study([make_record(layout, 0, 2.0)])
    assert "<script>alert" not in page_of(study)


def test_several_conditions_have_a_table_each(make_study: Make) -> None:
    records = [
        make_record(layout_of(h, d_model=d), s, 2.0 + h / 100 + s / 50)
        for d in (64, 128)
        for h in (2, 4)
        for s in range(2)
    ]
    page = page_of(make_study(records))
    assert "Layouts: d_model 64" in page
    assert "Layouts: d_model 128" in page


@pytest.mark.parametrize("width", [80, 100])
def test_table_fits_a_terminal(novel: Study, width: int) -> None:
    text = printed(novel, width)
    assert "…" not in text
    assert "gqa h4/kv2" in text
    assert "reference" in text
    assert len(text.splitlines()) < 30


def test_reporting_never_imports_torch(make_study: Make) -> None:
    study = make_study([make_record(layout_of(4), s, 2.0 + s) for s in range(2)])
    code = (
        "import sys; from pathlib import Path; from headcount.analysis import recommend, report\n"
        "from headcount.study.store import Study\n"
        f"study = Study(Path({str(study.folder)!r})); report.build(study); "
        "report.summary_table(study); recommend.recommend(study)\n"
        "assert not {'torch', 'pytorch_lightning', 'wandb', 'pandas'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
