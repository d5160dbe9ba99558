"""Draws of what seeds and timings leave open."""

from collections.abc import Callable

import numpy as np
import pytest

from headcount.analysis import evidence, pareto, uncertainty, verdicts
from headcount.analysis.arms import Arm
from headcount.analysis.serving import serving
from headcount.study.store import Study

from .conftest import layout_of, make_cost, make_record

Make = Callable[..., Study]


def draws_of(study: Study, n: int = 4000) -> tuple[list[Arm], uncertainty.Draws]:
    found = evidence.load(study)
    arms = found.arms_of("")
    judgement = verdicts.judge(found)
    return arms, uncertainty.draw(arms, judgement, serving(arms).timings, draws=n)


def test_draws_spread_as_the_means_do(novel: Study) -> None:
    found = evidence.load(novel)
    arms, judgement = found.arms, verdicts.judge(found)
    draws = uncertainty.draw(arms, judgement, serving(arms).timings, draws=4000)
    for i, arm in enumerate(arms):
        drawn = draws.quality[:, i]
        assert drawn.mean() == pytest.approx(arm.mean, abs=5e-4)
        low, high = np.quantile(drawn, [0.025, 0.975])
        assert (high - low) / 2 == pytest.approx(judgement.bar(arm), rel=0.1)


def test_a_layout_with_its_own_spread_is_drawn_by_it(make_study: Make) -> None:
    rng = np.random.default_rng(3)
    records = [
        make_record(layout_of(h), s, 2 + float(rng.normal(0, 0.5 if h == 8 else 0.01)))
        for h in (1, 2, 4, 8)
        for s in range(4)
    ]
    found = evidence.load(make_study(records))
    judgement = verdicts.judge(found)
    draws = uncertainty.draw(found.arms, judgement, serving(found.arms).timings, draws=4000)
    assert judgement.spread.apart.tolist() == [False, False, False, True]
    low, high = np.quantile(draws.quality[:, 3], [0.025, 0.975])
    assert (high - low) / 2 == pytest.approx(judgement.bar(found.arms[3]), rel=0.1)
    assert np.ptp(draws.quality[:, 0]) < 0.2


def test_one_seed_does_not_move_quality(make_study: Make) -> None:
    _, draws = draws_of(make_study([make_record(layout_of(h), 0, 2.0 + h) for h in (1, 2)]))
    assert np.ptp(draws.quality, axis=0).tolist() == [0, 0]
    assert np.isnan(draws.latency).all()


def test_the_noise_floor_moves_latency(make_study: Make) -> None:
    def spread(floor: float) -> float:
        records = [
            make_record(layout_of(2), 0, 2.0, cost=make_cost(layout_of(2), noise_floor=floor))
        ]
        _, draws = draws_of(make_study(records, name=f"floor-{floor}"))
        return float(np.std(np.log(draws.latency[:, 0])))

    # A floor is one difference of two medians; its mean size is 2/√π of a median's sd.
    assert spread(0.2) == pytest.approx(0.2 * np.sqrt(np.pi) / 2, rel=0.1)
    assert spread(0.0) < 0.02


def test_membership_is_certain_where_the_truth_is(make_study: Make) -> None:
    records = []
    for h, loss, ms in ((2, 1.9, 1.0), (4, 1.8, 2.0), (8, 2.5, 3.0)):
        cost = make_cost(layout_of(h), decode_ms=ms)
        records += [
            make_record(layout_of(h), s, loss + 0.001 * (s * h % 3), cost=cost) for s in range(4)
        ]
    arms, draws = draws_of(make_study(records))
    points = np.stack([draws.quality, draws.latency], axis=2)
    assert dict(zip([a.label for a in arms], pareto.membership(points), strict=True)) == {
        "mha h2": 1.0,
        "mha h4": 1.0,
        "mha h8": 0.0,
    }
