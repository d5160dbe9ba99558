"""A search by Optuna: two objectives, killed and taken up, wrong trials told for what they are."""

import numpy as np
import pytest

pytest.importorskip("optuna")

from headcount.analysis.pareto import front
from headcount.config import Orders
from headcount.errors import RequestError
from headcount.study.run import run_in_process
from headcount.study.search import Search, Settings, Space

SPACE = ("model.n_heads=1,2,3,4,8", "model.n_kv_heads=1,2", "optim.lr=tag(log,interval(1e-3,1e8))")
OBJECTIVES = {"quality/val_loss": "minimize", "kv_cache/bytes_per_token": "minimize"}
ORDERS = Orders(plan_only=False, shard=None, retries=0, fail_fast=False)


@pytest.fixture
def search(small):
    def build(n_trials, launch=run_in_process):
        space = Space.of(SPACE, {}, None)
        settings = Settings(OBJECTIVES, n_trials, batch_size=1, seed=0)
        return Search(space, settings, lambda o: small(*o), launch, ORDERS)

    return build


def test_killed_after_five_trials_it_goes_on_to_twelve(search):
    class KilledError(Exception):
        pass

    def killed(points, stop):
        if len(first._ended()) >= 5:
            raise KilledError
        return run_in_process(points, stop)

    first = search(12, killed)
    with pytest.raises(KilledError):
        first.run()
    assert len(first._ended()) == 5

    again = search(12)
    status = again.run()
    ended = again._ended()
    assert len(ended) == 12
    assert search(12).run() == status  # nothing is left to do
    assert len(again._ended()) == 12
    outcomes = {t.user_attrs["outcome"] for t in ended}
    assert {"completed", "invalid", "diverged"} <= outcomes
    assert status == 1  # a run diverged

    records = [r for r in again.study.records() if r.status == "completed"]
    points = np.array([[r.headline()[key] for key in OBJECTIVES] for r in records])
    assert {t.user_attrs["run_id"] for t in again.trials.best_trials} == {
        r.run_id for r, on_it in zip(records, front(points), strict=True) if on_it
    }


def test_what_is_searched():
    space = Space.of(
        ["a=1,2", "b=range(2,9,2)", "c=tag(log,interval(0.1,1.0))", "d=interval(1,4)", "e=5"],
        {"a": "7,8", "f": "x"},
        None,
    )
    described = {key: str(d) for key, d in space.distributions.items()}
    assert described == {
        "a": "CategoricalDistribution(choices=('1', '2'))",
        "b": "IntDistribution(high=8, log=False, low=2, step=2)",
        "c": "FloatDistribution(high=1.0, log=True, low=0.1, step=None)",
        "d": "FloatDistribution(high=4.0, log=False, low=1.0, step=None)",
    }
    assert space.fixed == ("f=x", "e=5")
    with pytest.raises(RequestError, match="nothing to search"):
        Space.of(["a=1"], {}, None)
