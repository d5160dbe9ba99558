"""Learning rates: the optimum, the edge of the grid, and runs that were lost."""

import numpy as np
import pytest

from headcount.analysis.tuning import reported_runs, sensitivity
from headcount.study.records import Record

from .conftest import layout_of, make_record

RATES = (3e-4, 1e-3, 3e-3, 1e-2)


def tried(best: float, seeds: tuple[int, ...] = (100, 101)) -> list[Record]:
    """Validation losses on a parabola in log lr about `best`."""
    return [
        make_record(
            layout_of(4), s, 2.0, val_loss=1.9 + 0.05 * np.log(lr / best) ** 2, optim__lr=lr
        )
        for lr in RATES
        for s in seeds
    ]


@pytest.mark.parametrize("best", [1.2e-3, 2e-3, 3e-3])
def test_the_parabolas_least_is_found(best: float) -> None:
    found = sensitivity(tried(best))
    assert found is not None
    assert found.rates == RATES
    assert found.optimum == pytest.approx(best, rel=1e-6)
    assert not found.on_edge


@pytest.mark.parametrize("best", [1e-4, 5e-2])
def test_an_optimum_on_the_edge_is_no_optimum(best: float) -> None:
    found = sensitivity(tried(best))
    assert found is not None
    assert found.on_edge
    assert found.optimum in (RATES[0], RATES[-1])


def test_lost_runs_are_counted_and_in_no_mean() -> None:
    records = tried(3e-3)
    records += [
        make_record(layout_of(4), s, None, status="diverged", optim__lr=3e-2) for s in (100, 101)
    ]
    found = sensitivity(records)
    assert found is not None
    assert found.lost == (0, 0, 0, 0, 2)
    assert np.isnan(found.means[-1])


def test_fresh_seeds_take_no_part_in_choosing() -> None:
    fresh = [make_record(layout_of(4), s, 9.0, optim__lr=3e-3) for s in range(3)]
    found = sensitivity(tried(3e-3) + fresh)
    assert found is not None
    assert max(found.highs) < 5
    runs, lr, choice = reported_runs(tried(3e-3) + fresh)
    assert (runs, lr, choice) == (fresh, 3e-3, "tuned")


def test_a_plan_says_which_seeds_choose() -> None:
    """While a study runs, or after it was tuned anew, the numbers of rates would not tell."""
    begun = [r for r in tried(3e-3) if r.config["seed"] == 100]
    begun += [make_record(layout_of(4), 101, 2.0, optim__lr=RATES[0])]
    old = [make_record(layout_of(4), s, 9.0, optim__lr=1e-3) for s in range(3)]
    new = [make_record(layout_of(4), s, 9.0, optim__lr=2.9e-3) for s in range(3)]
    runs, lr, choice = reported_runs(begun + old + new, {100, 101})
    assert (runs, lr, choice) == (new, 2.9e-3, "tuned")


def test_one_rate_has_no_sensitivity() -> None:
    assert sensitivity([make_record(layout_of(4), s, 2.0) for s in range(3)]) is None
