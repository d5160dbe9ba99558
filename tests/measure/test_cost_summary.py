"""The rows and remarks that people read, on measured and on made-up records."""

from headcount.config import Config
from headcount.measure.protocol import measured_shape
from headcount.measure.roofline import shape_from
from headcount.measure.summary import cost_rows, remarks
from headcount.study.records import Cost


def test_rows_say_what_each_layout_costs(measured: dict[str, Cost]) -> None:
    rows = cost_rows(list(measured.values()))
    assert [row["layout"] for row in rows] == ["mha h8", "gqa h8/kv2", "mqa h8/kv1"]
    assert [row["KV bytes/token"] for row in rows] == ["512", "128", "64"]
    assert rows[0]["decode against the first"] == ""
    verdicts = ("faster", "slower", "tie", "not comparable")
    assert all(row["decode against the first"].endswith(verdicts) for row in rows[1:])
    assert all(row["kernel"] == "sdpa flash" and row["train step ms"] for row in rows)


def test_remarks_name_the_noise_and_where_sharing_pays(measured: dict[str, Cost]) -> None:
    quiet = [
        cost.model_copy(update={"environment": cost.environment | {"co_running_cores": 0.0}})
        for cost in measured.values()
    ]
    found = remarks(quiet)
    assert found[0].startswith("mha h8, measured twice under two names, differed by up to ")
    assert sum("decodes faster than mha h8" in line for line in found) == 2
    assert not any("busy" in line or "mixed" in line for line in found)


def test_remarks_name_a_busy_host_and_mixed_records(measured: dict[str, Cost]) -> None:
    first, second, _ = measured.values()
    busy = second.model_copy(
        update={"device": "another", "environment": second.environment | {"co_running_cores": 2.0}}
    )
    found = remarks([first, busy])
    assert "not comparable: the host was busy with other processes" in found
    assert f"mixed device: {', '.join(sorted([first.device, 'another']))}" in found


def test_a_record_gives_its_shape_back(layouts: list[Config], measured: dict[str, Cost]) -> None:
    for config, cost in zip(layouts, measured.values(), strict=True):
        assert shape_from(cost.shape) == measured_shape(config)
