"""protocol=tuned: rates chosen on seeds of their own, reported on fresh ones."""

import threading

import pytest

from headcount.analysis import evidence, report
from headcount.config import Orders, Tuned, parse_orders
from headcount.errors import RequestError
from headcount.study.conduct import conduct
from headcount.study.plan import make_plan
from headcount.study.run import run_in_process
from headcount.study.tuned import TunedPlan

WAVES = ["training"]
PROTOCOL = Tuned(name="tuned", lr_factors=[4, 0.25, 1], seeds=[100])
POINTS = [(f"model.n_heads={h}", f"seed={s}") for h in (1, 2) for s in (0, 1)]


def orders(**changes) -> Orders:
    return Orders(
        **{"plan_only": False, "shard": None, "retries": 0, "fail_fast": False}
        | {"protocol": PROTOCOL}
        | changes
    )


@pytest.fixture(autouse=True)
def _no_report(monkeypatch):
    """What comes out is tested elsewhere; pictures take seconds."""
    monkeypatch.setattr(report, "build", lambda study: study.report / "index.html")


@pytest.fixture
def plan_of(small):
    return lambda *points: make_plan(points, lambda p: small(*p), WAVES)


@pytest.fixture
def launched():
    """Runs points in this process and remembers them: layout, seed, rate."""
    seen = []

    def launch(points, stop):
        seen.append([(p.config.layout.label, p.config.seed, p.config.optim.lr) for p in points])
        return run_in_process(points, stop)

    launch.seen = seen
    return launch


def test_rates_are_chosen_first_and_reported_on_fresh_seeds(plan_of, launched, capsys):
    plan = plan_of(*POINTS)
    assert conduct(plan, launched, WAVES, orders()) == 0
    first, second = launched.seen
    # The request's rate is 6e-3; its factors are tried in ascending order, on the selection seed.
    tried = [0.0015, 0.006, 0.024]
    assert sorted(first) == [(h, 100, lr) for h in ("mha h2", "single h1") for lr in tried]
    assert sorted((h, s) for h, s, _ in second) == [
        ("mha h2", 0), ("mha h2", 1), ("single h1", 0), ("single h1", 1),
    ]  # fmt: skip
    records = list(plan.study.records())
    for label in ("mha h2", "single h1"):
        # Independently: the best of the grid; at this size it lies on the edge, where none is fitted.
        losses = {
            r.config["optim"]["lr"]: r.quality.val_loss
            for r in records
            if r.layout.label == label and r.config["seed"] == 100
        }
        best = min(losses, key=losses.get)
        assert best == max(tried)
        assert {lr for h, _, lr in second if h == label} == {best}
    found = evidence.load(plan.study)
    assert [(a.seeds, a.lr, a.lr_choice) for a in found.arms] == [((0, 1), 0.024, "tuned")] * 2
    assert any("edge of its grid" in w for w in found.warnings)
    out = capsys.readouterr().out
    assert "6 runs planned, 4 more once they have chosen learning rates" in out
    assert "mha h2: lr 0.024, of 0.0015 to 0.024; on the edge" in out
    assert len(plan.study.planned()) == 10
    assert plan.study.selection_seeds() == {100}

    # The same command again trains nothing.
    assert conduct(plan_of(*POINTS), launched, WAVES, orders()) == 0
    assert len(launched.seen) == 2
    assert "10 runs planned, 10 complete, 0 to run" in capsys.readouterr().out


def test_plan_only_runs_nothing(plan_of, launched, capsys):
    plan = plan_of(*POINTS)
    assert conduct(plan, launched, WAVES, orders(plan_only=True)) == 0
    assert not launched.seen
    assert [p["seed"] for p in plan.study.planned()] == [100] * 6
    assert "4 more once" in capsys.readouterr().out


def test_a_shard_tunes_and_reports_layouts_of_its_own(plan_of, launched):
    plan = plan_of(*POINTS)
    assert conduct(plan, launched, WAVES, orders(shard="1/2")) == 0
    assert len({label for wave in launched.seen for label, _, _ in wave}) == 1
    assert [len(wave) for wave in launched.seen] == [3, 2]
    assert conduct(plan_of(*POINTS), launched, WAVES, orders(shard="2/2")) == 0
    assert [len(wave) for wave in launched.seen] == [3, 2, 3, 2]


def test_a_layout_reports_only_once_its_selection_is_over(plan_of):
    """A kill in the selection: the layout that had ended goes on, the other waits for the rest."""
    plan = TunedPlan.of(plan_of(*POINTS), PROTOCOL)
    done = [p for p in plan.points if p.config.layout.n_heads == 1]
    run_in_process(done, _never())
    assert len(plan.grow()) == 1
    assert (len(plan.points), plan.pending) == (8, 2)
    assert [p.config.seed for p in plan.points if p.config.seed != 100] == [0, 1]


def test_a_diverged_run_has_answered_a_failed_one_has_not(plan_of):
    plan = TunedPlan.of(plan_of(("model.n_heads=1", "seed=0")), PROTOCOL)
    run_in_process(plan.points, _never())
    for status, answered in (("failed", False), ("diverged", True)):
        record = plan.study.record(plan.points[-1].run_id)
        assert record is not None
        record.status = status
        plan.study.write_record(record)
        assert bool(plan.grow()) == answered
    assert plan.groups[0].rate == 0.006  # the best that is left; the rate above it diverged


def test_the_fitted_optimum_is_reported_to_two_digits(plan_of):
    plan = TunedPlan.of(plan_of(("model.n_heads=1", "seed=0")), PROTOCOL)
    run_in_process(plan.points, _never())
    for point, loss in zip(plan.points, (2.0, 1.0, 1.5), strict=True):
        record = plan.study.record(point.run_id)
        record.quality.val_loss = loss
        plan.study.write_record(record)
    assert plan.grow() == ["single h1: lr 0.0076, of 0.0015 to 0.024"]
    # Parabola through (−1, 2), (0, 1), (1, 1.5) in log4 of the rate over 6e-3: least at 1/6.
    assert plan.groups[0].rate == pytest.approx(6e-3 * 4 ** (1 / 6), rel=0.01)
    assert plan.points[-1].config.optim.lr == 0.0076


def test_wrong_requests(plan_of):
    def refused(text, *points, **changes):
        protocol = PROTOCOL.model_copy(update=changes)
        with pytest.raises(RequestError, match=text):
            TunedPlan.of(plan_of(*points), protocol)

    refused(r"protocol\.seeds=\[1\]: 1 is a seed that reports.*seed=0,1", *POINTS, seeds=[1])
    refused("optim.lr=0.001,0.002: swept", ("optim.lr=1e-3",), ("optim.lr=2e-3",))
    base = {"plan_only": False, "shard": None, "retries": 0, "fail_fast": False}
    for change, text in (
        ({"seeds": [5, 5]}, r"protocol\.seeds=\[5, 5\]: one stands twice"),
        ({"seeds": []}, r"protocol\.seeds=\[\]"),
        ({"lr_factors": [1, 2]}, r"protocol\.lr_factors"),
        ({"lr_factors": [1, 2, 0]}, r"protocol\.lr_factors\.2=0"),
    ):
        with pytest.raises(RequestError, match=text):
            parse_orders(base | {"protocol": PROTOCOL.model_dump() | change})


def _never():
    return threading.Event()
