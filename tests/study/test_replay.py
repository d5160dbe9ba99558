"""A run comes out again from its record alone, bit for bit, or the first difference is named."""

import json

import pytest

from headcount.errors import RequestError
from headcount.study import replay as replay_module
from headcount.study.replay import find_run, replay
from headcount.study.run import execute
from headcount.study.store import Study


@pytest.fixture
def finished(small):
    config = small("model.dropout=0.1", "study=s")
    record = execute(config)
    return Study.of(config).run_folder(record.run_id)


def test_the_same_comes_out(finished, capsys):
    before = {p: p.stat().st_mtime_ns for p in finished.rglob("*")}
    assert replay(finished) == 0
    assert "same, bit for bit: 24 rows" in capsys.readouterr().out  # 20 steps, 4 validations
    assert {p: p.stat().st_mtime_ns for p in finished.rglob("*")} == before


def test_the_first_difference_is_named(finished, capsys):
    path = finished / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[6]["train/loss"] += 1e-7
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    record = json.loads((finished / "record.json").read_text())
    record["code"]["source_hash"] = "of another day"
    (finished / "record.json").write_text(json.dumps(record))
    assert replay(finished) == 1
    out = capsys.readouterr().out
    assert f"different: step {rows[6]['step']}, train/loss: " in out
    assert "changed since: code.source_hash: of another day then" in out


def test_finding_a_run(finished, tmp_path):
    assert find_run(finished.name, tmp_path) == finished
    assert find_run(str(finished), tmp_path / "elsewhere") == finished
    with pytest.raises(RequestError, match="run nope: no run's folder"):
        find_run("nope", tmp_path)
    (tmp_path / "t" / "runs").mkdir(parents=True)
    (tmp_path / "t" / "runs" / finished.name).mkdir()
    (tmp_path / "t" / "runs" / finished.name / "record.json").write_text("{}")
    with pytest.raises(RequestError, match="in several studies"):
        find_run(finished.name, tmp_path)


def test_only_a_completed_run_can_be_compared(small):
    config = small("optim.lr=1e8", "trainer.max_steps=60")
    record = execute(config)
    with pytest.raises(RequestError, match="diverged; valid: a completed run"):
        replay(Study.of(config).run_folder(record.run_id))


def test_a_record_of_another_version_is_refused_in_a_line(finished, monkeypatch):
    record = json.loads((finished / "record.json").read_text())
    record["config"]["model"]["of_the_future"] = 1
    (finished / "record.json").write_text(json.dumps(record))
    with pytest.raises(RequestError, match="cannot read the record's configuration"):
        replay_module.replay(finished)
