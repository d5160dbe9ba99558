"""Records to tables: what is joined, what is left out, and what is said about it."""

from collections.abc import Callable

import numpy as np
import polars as pl
import pytest

from headcount.analysis import evidence
from headcount.analysis.arms import Arm
from headcount.layout import HeadLayout
from headcount.study.store import Study

from .conftest import TRUTH, layout_of, make_cost, make_record

Make = Callable[..., Study]


def arm(found: evidence.Evidence, label: str) -> Arm:
    return next(a for a in found.arms if a.label == label)


def said(found: evidence.Evidence, *words: str) -> bool:
    return any(all(word in w for word in words) for w in found.warnings)


def test_one_row_a_run_with_the_pinned_keys(novel: Study) -> None:
    found = evidence.load(novel)
    assert found.runs.height == 3 * len(TRUTH)
    record = next(novel.records())
    row = found.runs.row(by_predicate=pl.col("run_id") == record.run_id, named=True)
    assert record.cost is not None
    assert {k: row[k] for k in record.headline()} == record.headline()
    assert row["status"] == "completed"


def test_an_arm_is_a_layout_over_seeds(novel: Study) -> None:
    found = evidence.load(novel)
    records = [r for r in novel.records() if r.layout.label == "gqa h8/kv4"]
    gqa = arm(found, "gqa h8/kv4")
    assert gqa.seeds == (0, 1, 2)
    assert gqa.mean == pytest.approx(np.mean([r.quality.test_loss for r in records]))
    assert gqa.kv_bytes * 2 == arm(found, "mha h8").kv_bytes
    assert found.conditions == [""]


def test_clean_study_warns_of_parameters_only(novel: Study) -> None:
    warnings = evidence.load(novel).warnings
    assert len(warnings) == 1
    assert "layouts differ in parameters" in warnings[0]


@pytest.mark.parametrize("status", ["diverged", "failed", "interrupted", "running"])
def test_unfinished_runs_are_in_no_mean(make_study: Make, status: str) -> None:
    layout = layout_of(4)
    records = [make_record(layout, s, 2.0) for s in range(2)]
    records.append(make_record(layout, 2, 99.0, status=status))
    records += [make_record(layout_of(2), s, 2.0) for s in range(3)]
    found = evidence.load(make_study(records))
    assert arm(found, "mha h4").seeds == (0, 1)
    assert arm(found, "mha h4").mean == 2.0
    assert arm(found, "mha h4").statuses[status] == 1
    assert said(found, f"1 {status} of 6 runs")
    assert said(found, "mha h4 lacks seed 2")


def test_unequal_budgets_are_named(make_study: Make) -> None:
    records = [make_record(layout_of(h), s, 2.0) for h in (1, 2) for s in range(2)]
    records.append(make_record(layout_of(4), 0, 2.0, tokens=500_000))
    found = evidence.load(make_study(records))
    assert said(found, "unequal budgets", "mha h4", "500,000 tokens", "1,024,000")


def test_mixed_code_is_named(make_study: Make) -> None:
    records = [make_record(layout_of(2), s, 2.0, source_hash=f"{s}" * 16) for s in range(2)]
    assert said(evidence.load(make_study(records)), "mix versions of the code", "0000000000")


def test_mixed_kernels_are_named(make_study: Make) -> None:
    records = [
        make_record(layout_of(h), 0, 2.0, cost=make_cost(layout_of(h), kernel=k))
        for h, k in ((2, "flash"), (4, "math"))
    ]
    found = evidence.load(make_study(records))
    assert said(found, "mix decode kernels", "flash (mha h2)", "math (mha h4)")


def test_latencies_of_several_sessions_are_named(make_study: Make) -> None:
    costs = [make_cost(layout_of(h)) for h in (2, 4, 8)]
    for cost, session, speed in zip(costs, "aab", (2e11, 2e11, 1e11), strict=True):
        ceilings = {"matmul_flops_per_s": {"fp32": speed}}
        cost.environment |= {"session": session, "ceilings": ceilings}
    records = [make_record(c.layout, 0, 2.0, cost=c) for c in costs]
    found = evidence.load(make_study(records))
    assert said(
        found, "from 2 sessions (mha h2 and mha h4; mha h8)", "2 times, by a matrix product"
    )
    for cost in costs:
        cost.environment["session"] = "a"
    assert not said(evidence.load(make_study(records)), "sessions")


def test_devices_are_never_mixed(make_study: Make) -> None:
    layouts = [layout_of(h) for h in (2, 4, 8)]
    records = [make_record(x, 0, 2.0) for x in layouts]
    costs = [make_cost(x) for x in layouts[:2]]
    costs += [make_cost(layouts[2], device="NVIDIA H100")]
    found = evidence.load(make_study(records, costs))
    assert np.isnan(arm(found, "mha h8").decode_ms)
    assert arm(found, "mha h2").decode_ms > 0
    assert said(found, "not mixed in: NVIDIA H100", "without latency here: mha h8")


def test_costs_come_from_the_folder_too(make_study: Make) -> None:
    records = [make_record(layout_of(h), 0, 2.0) for h in (2, 4)]
    found = evidence.load(make_study(records, [make_cost(layout_of(2))]))
    assert arm(found, "mha h2").n_params == make_cost(layout_of(2)).compute.n_params
    assert said(found, "no cost record for mha h4")


def test_a_damaged_record_is_left_out_and_named(make_study: Make) -> None:
    study = make_study([make_record(layout_of(h), s, 2.0) for h in (1, 2) for s in range(2)])
    path = next(study.runs.glob("*/record.json"))
    whole = evidence.load(study)
    path.write_text(path.read_text()[:100])
    found = evidence.load(study)
    assert len(found.records) == len(whole.records) - 1
    assert found.warnings[0].startswith(f"left out: {path}: not a record")


def test_a_loss_that_is_no_number_is_left_out_and_named(make_study: Make) -> None:
    records = [make_record(layout_of(2), seed, loss) for seed, loss in enumerate((2.0, 2.1, 7.5))]
    study = make_study(records)
    path = study.run_folder(records[2].run_id) / "record.json"
    path.write_text(path.read_text().replace("7.5", "NaN"))
    found = evidence.load(study)
    assert arm(found, "mha h2").mean == pytest.approx(2.05)
    assert said(found, "no number stands as the test loss of", records[2].run_id)


def test_a_key_left_to_follow_from_others_hinders_no_cost(make_study: Make) -> None:
    record = make_record(layout_of(2), 0, 2.0)
    record.config["model"]["max_len"] = None
    found = evidence.load(make_study([record], [make_cost(layout_of(2))]))
    assert arm(found, "mha h2").cost is not None


def test_cost_of_another_depth_is_not_joined(make_study: Make) -> None:
    records = [make_record(layout_of(2), 0, 2.0)]
    found = evidence.load(make_study(records, [make_cost(layout_of(2), n_layers=6)]))
    assert arm(found, "mha h2").cost is None
    assert said(found, "no cost records")


def test_accuracy_is_the_metric_where_every_run_has_one(make_study: Make) -> None:
    records = [make_record(layout_of(h), 0, 0.3, accuracy=0.5 * h) for h in (1, 2)]
    found = evidence.load(make_study(records))
    assert found.metric_of("").key == "quality/test_accuracy"
    assert arm(found, "mha h2").mean == 1.0


def test_the_metric_and_its_margin_are_the_conditions(make_study: Make) -> None:
    records = []
    for task, unit, accuracy in (("retrieval", "NMSE", None), ("endpoint_selection", "nats", 0.9)):
        for h in (1, 2, 4):
            record = make_record(layout_of(h), 0, 0.3, accuracy=accuracy, task__name=task)
            record.quality.loss_unit = unit  # type: ignore[assignment]
            records.append(record)
    found = evidence.load(make_study(records))
    nmse, right = (found.metric_of(f"task {t}") for t in ("retrieval", "endpoint_selection"))
    assert (nmse.key, nmse.unit, nmse.margin) == ("quality/test_loss", "NMSE", 0.01)
    assert "a hundredth of the answer's variance" in nmse.margin_reason
    assert (right.key, right.unit, right.loss_unit) == ("quality/test_accuracy", "", "nats")
    assert set(found.runs["quality/loss_unit"]) == {"NMSE", "nats"}


def test_a_condition_names_only_what_its_task_has(make_study: Make) -> None:
    records = [make_record(layout_of(h), 0, 2.0) for h in (1, 2)]
    for n in (3, 4):
        records += [
            make_record(layout_of(h), 0, 2.0, task__name="retrieval", task__n_terms=n)
            for h in (1, 2)
        ]
    found = evidence.load(make_study(records))
    assert sorted(found.conditions) == [
        "task moby_dick",
        "task retrieval, n_terms 3",
        "task retrieval, n_terms 4",
    ]


def test_two_tasks_are_never_compared_even_where_they_follow_the_layout(make_study: Make) -> None:
    records = [
        make_record(layout_of(h), s, 2.0, task__name=task)
        for h, task in ((1, "retrieval"), (2, "moby_dick"))
        for s in range(2)
    ]
    found = evidence.load(make_study(records))
    assert sorted(found.conditions) == ["task moby_dick", "task retrieval"]


def test_latents_of_mla_are_layouts_not_conditions(make_study: Make) -> None:
    records = []
    for latent in (16, 32):
        head = HeadLayout.of(64, 4, d_latent=latent, d_rope=8)
        layout = layout_of(4).model_copy(
            update={"kind": "mla", "d_latent": latent, "d_rope": 8, "label": head.label}
        )
        records += [
            make_record(layout, s, 2.0, model__d_latent=latent, model__d_rope=8) for s in range(2)
        ]
    found = evidence.load(make_study(records))
    assert found.conditions == [""]
    assert [a.label for a in found.arms] == ["mla h4/c16+8", "mla h4/c32+8"]


def test_a_layout_far_noisier_than_the_others_is_named(make_study: Make) -> None:
    rng = np.random.default_rng(4)
    records = [
        make_record(layout_of(h), s, 2 + float(rng.normal(0, 0.3 if h == 1 else 0.01)))
        for h in (1, 2, 4, 8)
        for s in range(4)
    ]
    assert said(
        evidence.load(make_study(records)), "single h1 varies", "times as much between seeds"
    )
    same = [make_record(layout_of(h), s, 2.0 + (h == 1) * s) for h in (1, 2, 4) for s in range(3)]
    assert said(evidence.load(make_study(same, name="same")), "varies between seeds, the other")


def test_rates_differ_between_tasks_without_a_warning(make_study: Make) -> None:
    records = [
        make_record(layout_of(h), 0, 2.0, task__name=task, optim__lr=lr)
        for task, lr in (("retrieval", 1e-3), ("moby_dick", 3e-3))
        for h in (1, 2)
    ]
    assert not said(evidence.load(make_study(records)), "learning rate")


def test_width_makes_conditions(make_study: Make) -> None:
    records = [
        make_record(layout_of(h, d_model=d), s, 2.0)
        for d in (64, 128)
        for h in (2, 4)
        for s in range(2)
    ]
    found = evidence.load(make_study(records))
    assert sorted(found.conditions) == ["d_model 128", "d_model 64"]
    assert [a.label for a in found.arms_of("d_model 64")] == ["mha h2", "mha h4"]


def test_task_settings_that_follow_the_task_make_no_condition(make_study: Make) -> None:
    records = []
    for name, length in (("moby_dick", 128), ("endpoint_selection", 4)):
        for h in (2, 4):
            records.append(make_record(layout_of(h), 0, 2.0, task__name=name, task__seq_len=length))
    found = evidence.load(make_study(records))
    assert sorted(found.conditions) == ["task endpoint_selection", "task moby_dick"]


def test_a_setting_tied_to_the_layout_is_named(make_study: Make) -> None:
    records = [
        make_record(layout_of(h), s, 2.0, task__seq_len=64 * h) for h in (1, 2) for s in range(2)
    ]
    found = evidence.load(make_study(records))
    assert found.conditions == [""]
    assert said(found, "task.seq_len differs between layouts")


def test_tuned_rates_report_on_fresh_seeds(make_study: Make) -> None:
    records = []
    for h in (2, 4):
        best = 1e-3 if h == 2 else 3e-3
        for lr in (3e-4, 1e-3, 3e-3, 1e-2):
            loss = 1.5 + abs(np.log(lr / best))
            records += [make_record(layout_of(h), s, loss, optim__lr=lr) for s in (100, 101)]
        records += [make_record(layout_of(h), s, 2.0, optim__lr=best) for s in range(3)]
    found = evidence.load(make_study(records))
    for label, lr in (("mha h2", 1e-3), ("mha h4", 3e-3)):
        assert arm(found, label).seeds == (0, 1, 2)
        assert arm(found, label).lr == lr
        assert arm(found, label).lr_choice == "tuned"
    assert not said(found, "learning rate")


def test_rates_chosen_on_the_reported_seeds_are_called_flattered(make_study: Make) -> None:
    records = [
        make_record(layout_of(2), s, loss, optim__lr=lr)
        for lr, loss in ((1e-3, 2.0), (3e-3, 1.9))
        for s in range(2)
    ]
    found = evidence.load(make_study(records))
    assert arm(found, "mha h2").lr == 3e-3
    assert arm(found, "mha h2").values.tolist() == [1.9, 1.9]
    assert said(found, "mha h2", "flattered")


def test_empty_study(make_study: Make) -> None:
    found = evidence.load(make_study([]))
    assert found.runs.height == 0
    assert found.arms == []


def test_measured_noise_is_named(make_study: Make) -> None:
    records = [make_record(layout_of(2), 0, 2.0, cost=make_cost(layout_of(2), noise_floor=0.3))]
    assert said(evidence.load(make_study(records)), "latency is noisy", "30%")
