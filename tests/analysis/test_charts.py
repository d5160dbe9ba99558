"""Charts show the figures of the records."""

import json
from collections.abc import Callable

import numpy as np
import pytest

from headcount.analysis import charts, curves, evidence, interactive, uncertainty, verdicts
from headcount.analysis.charts import Chart
from headcount.analysis.style import binary_ticks, round_ticks, shade
from headcount.study.store import Study

from .conftest import layout_of, make_cost, make_record, novel_records, write_metrics

Make = Callable[..., Study]


def charts_of(study: Study) -> dict[str, Chart]:
    found = evidence.load(study)
    return {c.stem: c for c in charts.charts(found, verdicts.judge(found))}


def test_latency_against_context(novel: Study) -> None:
    chart = charts_of(novel)["decode_latency_vs_context"]
    cost = next(r.cost for r in novel.records() if r.layout.label == "mha h8")
    assert cost is not None
    line = next(s for s in chart.series if s.name == "mha h8")
    points = [cost.point("decode", c, 1) for c in (64, 256, 1024)]
    assert line.x == [64, 256, 1024]
    assert line.y == [p.p50_ms for p in points if p]
    assert all(low < y < high for low, y, high in zip(line.low, line.y, line.high, strict=True))
    assert "batch 1, fp32, CPU AMD EPYC 9R14, kernel grouped matmul" in chart.definition


def test_layouts_with_the_same_cache_share_a_line(novel: Study) -> None:
    chart = charts_of(novel)["kv_cache_vs_context_and_batch"]
    assert [s.name for s in chart.series] == [
        "mqa h8/kv1",
        "mqa h4/kv1",
        "gqa h4/kv2 +1",
        "single h1 +4",
    ]
    assert chart.series[0].y[0] == 128 * 128


def test_learning_curves_are_means_over_seeds(novel: Study) -> None:
    found = evidence.load(novel)
    arm = next(a for a in found.arms if a.label == "mha h2")
    curve = curves.curve(novel, arm)
    assert curve is not None
    assert curve.tokens.tolist() == [k * 100 * 2048 for k in range(1, 6)]
    records = [r for r in novel.records() if r.layout.label == "mha h2"]
    last = [r.quality.val_loss for r in records]
    assert curve.mean[-1] == pytest.approx(np.mean(last) + 3 * 0.985**500)  # type: ignore[arg-type]
    assert (curve.low <= curve.mean).all()
    assert (curve.mean <= curve.high).all()


def test_a_torn_line_and_a_null_are_left_out(make_study: Make) -> None:
    study = make_study([make_record(layout_of(2), 0, 2.0)])
    record = next(study.records())
    rows = [{"step": k, "tokens": 10 * k, "val/loss": 3.0 - k} for k in (1, 2)]
    rows.append({"step": 3, "tokens": 30, "val/loss": None})
    text = "\n".join(map(json.dumps, rows)) + '\n{"step": 4, "tokens": 40, "val/lo'
    (study.run_folder(record.run_id) / "metrics.jsonl").write_text(text)
    arm = evidence.load(study).arms[0]
    curve = curves.curve(study, arm)
    assert curve is not None
    assert curve.tokens.tolist() == [10, 20]


def test_only_tokens_that_all_seeds_reached_are_compared(make_study: Make) -> None:
    study = make_study([make_record(layout_of(2), s, 2.0) for s in (0, 1)])
    first, second = study.records()
    write_metrics(study, first)
    write_metrics(study, second)
    path = study.run_folder(second.run_id) / "metrics.jsonl"
    rows = [line for line in path.read_text().splitlines() if json.loads(line)["step"] <= 300]
    path.write_text("\n".join(rows))
    curve = curves.curve(study, evidence.load(study).arms[0])
    assert curve is not None
    assert curve.tokens.max() == 300 * 2048


def test_slices_are_differences_within_a_seed(make_study: Make) -> None:
    records = [
        make_record(
            layout_of(h), s, 2.0 + s, slices={"position_0_15": 2.0 + s + gap, "rare": 3.0 + s}
        )
        for h, gap in ((2, 0.1), (4, 0.0))
        for s in range(3)
    ]
    chart = charts_of(make_study(records))["slices"]
    assert chart.x_names == ("position 0–15", "rare")
    assert chart.series[0].name == "mha h2"
    assert chart.series[0].y == pytest.approx([0.1, 0.0])


def test_many_layouts_are_thinned_to_those_worth_a_line(make_study: Make) -> None:
    records = []
    for heads in (1, 2, 4, 8, 16, 32, 64):
        for kv in (1, 2, 4, 8, 16, 32, 64):
            if kv <= heads:
                layout = layout_of(heads, kv)
                cost = make_cost(layout)
                records += [
                    make_record(layout, s, 2.0 - kv / 100 + s / 1000, cost=cost) for s in range(2)
                ]
    chart = charts_of(make_study(records))["decode_latency_vs_context"]
    assert len(chart.series) <= charts.MOST_LINES + 1
    assert "Shown of 28 layouts" in chart.definition


def test_no_costs_no_latency_charts(make_study: Make) -> None:
    study = make_study(novel_records(with_cost=False))
    assert set(charts_of(study)) == {"slices"}


def test_ticks_are_round_and_span_the_axis() -> None:
    assert round_ticks(0.7, 3) == [0.6, 0.8, 1, 1.5, 2, 3]
    assert round_ticks(1, 100) == [1, 2, 5, 10, 20, 50, 100]
    assert binary_ticks(128, 2**20) == [2.0**k for k in (7, 9, 11, 13, 15, 17, 19)]


def test_shades_start_at_the_colour_itself() -> None:
    assert shade("#0072B2", 0, 3) == "#0072b2"
    assert shade("#000000", 2, 3) == "#808080"


def test_labels_of_points_that_lie_together_are_joined(make_study: Make) -> None:
    records = [
        make_record(
            layout_of(h), s, 1.0 if h > 1 else 2.0, cost=make_cost(layout_of(h), decode_ms=1)
        )
        for h in (1, 2, 4)
        for s in range(2)
    ]
    found = evidence.load(make_study(records))
    judgement = verdicts.judge(found)
    fronts = uncertainty.fronts(found.arms, judgement)
    spec = interactive.figures(found, judgement, fronts, [])["quality_vs_kv_bytes"]
    trace = next(t for t in spec["data"] if t["name"] == "MHA")
    assert trace["text"] == ["h1", "h2, h4", ""]
