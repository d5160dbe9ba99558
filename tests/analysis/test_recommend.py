"""One recommendation within limits: the right layout, and the right words where there is none."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from headcount.analysis import recommend as recommend_
from headcount.analysis.recommend import Limits, bytes_of, recommend
from headcount.cli import app
from headcount.errors import RequestError
from headcount.study.records import Record
from headcount.study.store import Study

from .conftest import layout_of, make_cost, make_record

Make = Callable[..., Study]

# (n_heads, n_kv_heads): mean loss, decode ms. KV bytes a token at d_model 64, 2 layers, fp32: 1,024
# for MHA, 512 and 128 for the shared ones.
CLEAR = {(2, 2): (2.0, 1.0), (4, 4): (1.90, 1.5), (8, 8): (1.89, 3.0), (8, 1): (1.98, 0.6)}


def records_of(
    truth: dict[tuple[int, int], tuple[float, float]],
    seeds: int = 5,
    sd: float = 0.0005,
    **cost: object,
) -> list[Record]:
    rng = np.random.default_rng(1)
    effect = rng.normal(0, 0.02, seeds)
    records = []
    for (n_heads, n_kv), (loss, ms) in truth.items():
        layout = layout_of(n_heads, n_kv)
        price = make_cost(layout, decode_ms=ms, **cost)  # type: ignore[arg-type]
        records += [
            make_record(layout, s, float(loss + effect[s] + rng.normal(0, sd)), cost=price)
            for s in range(seeds)
        ]
    return records


@pytest.fixture
def clear(make_study: Make) -> Study:
    return make_study(records_of(CLEAR))


def test_clear_winner(clear: Study) -> None:
    # mha h8 is 0.01 better than h4: with 0.02 tolerated, h4 at half the time is the one to take.
    found = recommend(clear, Limits(tolerance=0.02))
    assert (found.status, found.choice) == ("recommended", "mha h4")
    assert found.confidence is not None
    assert found.confidence > 0.95
    assert "cheapest of the 2 layouts" in found.reason
    assert any("tolerating less than 0.01" in line for line in found.would_change)
    assert found.words.startswith("Use mha h4.")


def test_smaller_tolerance_takes_the_better_layout(clear: Study) -> None:
    found = recommend(clear, Limits(tolerance=0.004))
    assert found.choice == "mha h8"
    assert "No other candidate comes within 0.004 nats" in found.reason


def test_latency_limit(clear: Study) -> None:
    # The headline is context 256: costs are 1.25 times their base, 1/16 more for batch 1.
    found = recommend(clear, Limits(latency_ms=1.5))
    assert found.choice == "mqa h8/kv1"
    assert any("mha h8 would be" in line and "limit 1.5 ms" in line for line in found.would_change)
    assert [o.label for o in found.options if o.excluded] == ["mha h4", "mha h8"]


def test_kv_and_memory_limits_use_the_context_and_batch(clear: Study) -> None:
    # 1,000 tokens × 4 sequences × 1,024 bytes = 4,096,000 for MHA, an eighth for one KV head of 8.
    found = recommend(clear, Limits(kv_bytes=4e6, context=1000, batch_size=4))
    assert found.choice == "mqa h8/kv1"
    option = next(o for o in found.options if o.label == "mqa h8/kv1")
    assert option.kv_bytes == 1000 * 4 * 128
    assert "read at 1,024, the next one measured" in found.at
    cost = make_cost(layout_of(8, 1))
    weights = cost.memory.weights_bytes
    rest = max(cost.memory.decode_peak_bytes - cost.kv_cache.allocated_bytes, weights)
    assert option.memory_bytes == rest + 1000 * 4 * 128


def test_tie_is_not_decided_by_chance(make_study: Make) -> None:
    # The faster layout is 0.011 worse, on the edge of what is tolerated, with a spread of 0.009.
    values = {2: (1.0, [1.90, 1.92, 1.89]), 4: (0.9, [1.91, 1.94, 1.893])}
    records = [
        make_record(layout_of(h), s, v, cost=make_cost(layout_of(h), decode_ms=ms))
        for h, (ms, column) in values.items()
        for s, v in enumerate(column)
    ]
    found = recommend(make_study(records))
    assert found.status == "undecided"
    assert {found.choice, found.runner_up} == {"mha h2", "mha h4"}
    assert "The data cannot decide" in found.words
    assert "seeds are too few" in found.reason
    assert found.commands
    assert all(re.search(r"headcount train .*seed=3", c) for c in found.commands)


def test_interchangeable_layouts_are_said_to_be_so(make_study: Make) -> None:
    study = make_study(records_of({(2, 2): (1.9, 1.0), (4, 4): (1.9, 1.0)}, noise_floor=0.1))
    found = recommend(study)
    assert found.status == "recommended"
    assert "would do as well" in found.reason
    assert found.confidence == pytest.approx(1)


def test_infeasible_limit_names_what_is_nearest(clear: Study) -> None:
    found = recommend(clear, Limits(latency_ms=0.1))
    assert (found.status, found.choice) == ("infeasible", None)
    assert "at least (mqa h8/kv1), the limit is 0.1 ms" in found.reason
    assert found.words.startswith("No layout keeps the limits.")


def test_limits_that_exclude_each_other_are_listed(clear: Study) -> None:
    found = recommend(clear, Limits(latency_ms=1.5, kv_bytes=100))
    assert found.status == "infeasible"
    found = recommend(clear, Limits(latency_ms=1.5, kv_bytes=40_000, tolerance=0))
    assert found.choice == "mqa h8/kv1"


def test_one_seed_decides_nothing(make_study: Make) -> None:
    found = recommend(make_study(records_of(CLEAR, seeds=1)))
    assert found.status == "undecided"
    assert found.confidence is None
    assert "One seed has no spread" in found.reason
    assert "seed=1,2" in found.commands[0]
    assert "-m" in found.commands[0]


def test_missing_cost_record(make_study: Make) -> None:
    records = records_of(CLEAR)
    for record in records:
        if record.layout.label == "mha h4":
            record.cost = None
    found = recommend(make_study(records), Limits(tolerance=0.02))
    assert found.choice == "mha h8"
    assert any("not measured, so no candidate: mha h4" in c for c in found.caveats)


def test_no_cost_records_at_all(make_study: Make) -> None:
    records = records_of(CLEAR)
    for record in records:
        record.cost = None
    study = make_study(records)
    found = recommend(study)
    assert found.choice == "mha h8"
    assert "without costs nothing else counts" in found.reason
    limited = recommend(study, Limits(latency_ms=1))
    assert limited.status == "undecided"
    assert "cannot be checked: no layout has a cost record" in limited.reason
    assert all(c.startswith("headcount measure") for c in limited.commands)


def test_unmeasured_context_gives_the_command_that_measures_it(clear: Study) -> None:
    found = recommend(clear, Limits(context=9000, latency_ms=5))
    assert found.status == "undecided"
    assert "not measured at context 9,000" in found.reason
    # All MHA layouts in one command, the one with shared KV heads in another.
    assert len(found.commands) == 2
    assert "model.n_heads=2,4,8" in found.commands[0]
    assert all("measure.contexts=[9000]" in c for c in found.commands)


def test_a_cache_limit_needs_no_timings_at_its_context(clear: Study) -> None:
    found = recommend(clear, Limits(context=9000, kv_bytes=9000 * 1024 - 1))
    assert (found.status, found.choice) == ("recommended", "mqa h8/kv1")
    options = {o.label: o for o in found.options}
    assert options["mqa h8/kv1"].kv_bytes == 9000 * 128
    assert "KV cache is" in options["mha h8"].excluded[0]
    assert any("not measured at context 9,000" in c for c in found.caveats)


def test_without_timings_the_smallest_cache_is_the_cheapest(clear: Study) -> None:
    found = recommend(clear, Limits(context=9000, tolerance=1))
    assert found.choice == "mqa h8/kv1"
    assert "the cheapest of the 4 layouts" in found.reason
    assert any(
        "tolerating less than 0.09 nats rules mqa h8/kv1 out" in w for w in found.would_change
    )


def test_a_layout_without_a_cost_record_is_named_where_caches_decide(make_study: Make) -> None:
    records = records_of(CLEAR)
    for record in records:
        if record.layout.label == "mha h8":
            record.cost = None
    found = recommend(make_study(records), Limits(context=9000))
    assert found.choice == "mha h4"
    assert "cache not measured, so no candidate: mha h8" in found.caveats


def test_one_seed_has_no_interval_to_name(make_study: Make) -> None:
    assert "95%" not in recommend(make_study(records_of(CLEAR, seeds=1))).reason


def test_mixed_kernels_and_code_are_minded(make_study: Make) -> None:
    records = records_of(CLEAR)
    for i, record in enumerate(records):
        record.code = record.code | {"source_hash": "old" if i else "new"}
        assert record.cost
        for point in record.cost.points:
            point.kernel = "math" if record.layout.label == "mha h8" else "flash"
    found = recommend(make_study(records))
    assert any("mix decode kernels" in c for c in found.caveats)
    assert any("mix versions of the code" in c for c in found.caveats)
    assert "Mind:" in found.words


def test_diverged_layout_is_no_candidate(make_study: Make) -> None:
    records = records_of(CLEAR)
    records += [make_record(layout_of(16), s, None, status="diverged") for s in range(5)]
    found = recommend(make_study(records))
    option = next(o for o in found.options if o.label == "mha h16")
    assert option.excluded == ["no completed run (5 diverged)"]
    assert option.chosen_share == 0


def test_nothing_completed(make_study: Make) -> None:
    found = recommend(make_study([make_record(layout_of(2), 0, None, status="failed")]))
    assert found.status == "no data"
    assert "No run has completed" in found.words


def test_empty_study(make_study: Make) -> None:
    assert recommend(make_study([])).status == "no data"


def test_accuracy_is_maximised(make_study: Make) -> None:
    records = [
        make_record(layout_of(h), s, 0.1, accuracy=a, cost=make_cost(layout_of(h), decode_ms=ms))
        for h, a, ms in ((1, 0.5, 0.5), (2, 1.0, 1.0), (4, 1.0, 2.0))
        for s in range(3)
    ]
    found = recommend(make_study(records))
    assert found.choice == "mha h2"


def test_hardware(make_study: Make) -> None:
    records = records_of({(2, 2): (1.9, 1.0), (4, 4): (1.9, 2.0)}, measured="2026-12-01")
    gpu = [
        make_cost(layout_of(h), decode_ms=ms, device="NVIDIA H100 80GB")
        for h, ms in ((2, 0.4), (4, 0.1))
    ]
    study = make_study(records, gpu)
    assert recommend(study).choice == "mha h2"
    on_gpu = recommend(study, Limits(hardware="h100"))
    assert on_gpu.choice == "mha h4"
    assert "NVIDIA H100" in on_gpu.at
    with pytest.raises(RequestError, match=r"hardware=tpu: .*valid: CPU AMD.*NVIDIA H100"):
        recommend(study, Limits(hardware="tpu"))


def test_json_says_the_same(clear: Study) -> None:
    found = recommend(clear, Limits(latency_ms=2))
    document = json.loads(json.dumps(found.to_json()))
    assert document["choice"] == found.choice
    assert document["limits"]["latency_ms"] == 2
    assert {o["label"] for o in document["options"]} == {"mha h2", "mha h4", "mha h8", "mqa h8/kv1"}


def test_planned_overrides_are_repeated(make_study: Make) -> None:
    study = make_study(records_of(CLEAR, seeds=1))
    points = [
        {"run_id": r.run_id, "overrides": ["experiment=mine", "attention=gqa", "seed=0"]}
        for r in study.records()
    ]
    study.plan_path.write_text(json.dumps({"points": points}))
    command = recommend(study).commands[0]
    assert command.startswith("headcount train -m experiment=mine ")
    assert "attention" not in command
    assert "optim.lr" not in command
    assert f"paths.results={study.folder.parent}" in command


def test_commands_are_relative_where_results_are(
    make_study: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_study(records_of(CLEAR, seeds=1), name="results/mine")
    monkeypatch.chdir(tmp_path)
    assert "paths.results" not in recommend(Study(Path("results/mine"))).commands[0]


def test_condition(make_study: Make) -> None:
    records = [
        make_record(layout_of(h, d_model=d), s, 2.0 + (h == best) * -0.1 + 0.001 * (s * h % 3))
        for d, best in ((64, 2), (128, 4))
        for h in (2, 4)
        for s in range(4)
    ]
    study = make_study(records)
    assert recommend(study, condition="d_model 64").choice == "mha h2"
    assert recommend(study, condition="d_model 128").choice == "mha h4"
    with pytest.raises(RequestError, match=r"condition=d_model 32: .*valid: d_model"):
        recommend(study, condition="d_model 32")


def test_the_command_answers_for_a_condition_in_its_own_unit(make_study: Make) -> None:
    records = []
    for task, unit in (("retrieval", "NMSE"), ("moby_dick", "nats")):
        for h in (1, 2):
            for s in range(3):
                record = make_record(layout_of(h), s, h + s / 100, task__name=task)
                record.quality.loss_unit = unit  # type: ignore[assignment]
                records.append(record)
    study = make_study(records)
    arguments = ["recommend", str(study.folder), "--json", "--condition", "task retrieval"]
    done = CliRunner().invoke(app, arguments)
    answer = json.loads(done.output)
    assert (answer["condition"], answer["metric"]) == ("task retrieval", "quality/test_loss")
    assert (answer["unit"], answer["tolerance"]) == ("NMSE", 0.01)
    assert "test loss 1.0100 NMSE" in answer["reason"]


def test_wrong_limits() -> None:
    with pytest.raises(RequestError, match="latency_ms=-1"):
        Limits(latency_ms=-1)
    with pytest.raises(RequestError, match="batch_size=0"):
        Limits(batch_size=0)
    assert Limits(tolerance=0).tolerance == 0


@pytest.mark.parametrize(
    ("text", "size"),
    [("512MiB", 512 * 2**20), ("2GB", 2e9), ("1.5k", 1500), ("64KiB", 65536), ("1000", 1000)],
)
def test_sizes(text: str, size: float) -> None:
    assert bytes_of("kv", text) == size


@pytest.mark.parametrize("text", ["", "MiB", "1.2.3GB", "5 apples"])
def test_wrong_sizes(text: str) -> None:
    with pytest.raises(RequestError, match=r"^kv=.*: not a size"):
        bytes_of("kv", text)


def test_sure_is_the_power_asked_of_a_study() -> None:
    assert recommend_.SURE == 0.8
