"""What `status` reads off a study."""

import io

import pytest
from rich.console import Console

from headcount.study import status
from headcount.study.estimate import duration, estimate
from headcount.study.plan import make_plan
from headcount.study.run import execute, new_record
from headcount.study.status import look


@pytest.fixture
def study(small):
    points = [(f"seed={s}",) for s in range(4)]
    plan = make_plan(points, lambda p: small(*p), ["training"])
    plan.save(estimate([p.config for p in plan.points], []))
    execute(small("seed=0"))
    execute(small("seed=1", "optim.lr=1e8", "trainer.max_steps=60", "study=other"))
    record = new_record(small("seed=1"), plan.study, None)
    record.training.steps = 7
    plan.study.write_record(record)
    return plan.study


def test_counts_steps_and_reasons(study):
    state = look(study)
    # A record that says `running` and that no live process holds is one that was interrupted.
    assert dict(state.counts) == {"completed": 1, "interrupted": 1, "not started": 2}
    assert (state.done, state.steps) == (27, 80)
    assert [line.status for line in state.lines] == ["interrupted", "not started", "not started"]
    assert "the same command goes on" in state.lines[0].reason


def test_a_damaged_record_hides_no_other_run(study):
    run_id = next(line.run_id for line in look(study).lines if line.status == "interrupted")
    (study.run_folder(run_id) / "record.json").write_text("{")
    (study.costs / "x.json").parent.mkdir(exist_ok=True)
    (study.costs / "x.json").write_text("{")
    state = look(study)
    assert dict(state.counts) == {"completed": 1, "damaged": 1, "not started": 2}
    assert state.lines[0].run_id == run_id
    assert "record.json: not a record" in state.lines[0].reason
    assert state.costs == 0
    assert "x.json: not a record" in state.unread[0]


def test_a_run_at_work_is_told_with_its_host(study):
    run_id = next(line.run_id for line in look(study).lines if line.status == "interrupted")
    with study.claim(run_id):
        (line,) = [x for x in look(study).lines if x.status == "running"]
    assert line.reason.startswith("on ")


def test_it_is_live_on_a_terminal_until_nothing_runs(study, monkeypatch):
    out = io.StringIO()
    monkeypatch.delenv("CI", raising=False)
    terminal = Console(file=out, force_terminal=True, width=120)
    monkeypatch.setattr(status, "console", lambda: terminal)
    run_id = next(line.run_id for line in look(study).lines if line.status == "interrupted")
    naps = []

    def sleep(seconds):
        naps.append(seconds)
        record = study.record(run_id)
        record.training.steps = 17
        if len(naps) == 2:
            record.status = "completed"
        study.write_record(record)

    monkeypatch.setattr(status.time, "sleep", sleep)
    with study.claim(run_id):
        status.show(study)
    assert len(naps) == 2
    assert "a second, about" in out.getvalue() and "2 completed" in out.getvalue()


def test_durations_read_well():
    assert [duration(s) for s in (0.4, 90, 600, 9000, 200_000)] == [
        "0 s",
        "90 s",
        "10 min",
        "2 h",
        "2 days",
    ]
