"""Ties, intervals and what cannot be compared; growth with the context. All on made-up records."""

from typing import Any

import numpy as np
import pytest

from headcount.measure.compare import (
    compare,
    disturbed,
    fixed_and_best,
    median_interval,
    mixtures,
    ratio_interval,
)
from headcount.measure.scaling import fit_context, fitted_exponent, pays_from
from headcount.study.records import Cost, Point

CONTEXTS = (128, 512, 2048, 8192)


def samples(median: float, spread: float = 0.01, seed: int = 0) -> list[float]:
    noise = np.random.default_rng(seed).normal(0, spread, 41)
    return (median * (1 + noise - np.median(noise))).tolist()


def point(phase: str, context: int, ms: float, **changes: Any) -> Point:
    values: dict[str, Any] = {
        "phase": phase,
        "context": context,
        "batch_size": 1,
        "samples_ms": samples(ms),
        "p50_ms": ms,
        "p90_ms": ms,
        "p99_ms": ms,
        "kernel": "sdpa flash",
        "kv_sharing": "none to share",
    }
    return Point(**values | changes)


def slower(cost: Cost, factor: float, **changes: Any) -> Cost:
    """The same record with every sample multiplied."""
    points = [
        p.model_copy(
            update={"samples_ms": [factor * s for s in p.samples_ms], "p50_ms": factor * p.p50_ms}
        )
        for p in cost.points
    ]
    return cost.model_copy(update={"points": points, **changes})


@pytest.fixture
def base(measured: dict[str, Cost]) -> Cost:
    """Decode 1 + T/1000 ms, prefill 1 + T/100 + T²/10,000 ms, over four contexts."""
    cost = next(iter(measured.values()))
    points = [point("decode", t, 1 + t / 1000) for t in CONTEXTS]
    points += [point("prefill", t, 1 + t / 100 + t * t / 10_000) for t in CONTEXTS]
    environment = cost.environment | {"session": "s", "co_running_cores": 0.0}
    update = {"points": points, "noise_floor": 0.03, "environment": environment}
    return cost.model_copy(update=update)


def test_the_same_layout_twice_is_a_tie(base: Cost) -> None:
    comparison = compare(base, base, "decode", 512, 1)
    assert comparison is not None
    assert comparison.verdict == "tie"
    assert comparison.ratio == comparison.low == comparison.high == 1
    assert comparison.noise_floor == 0.03


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(1.02, "tie"), (0.98, "tie"), (1.05, "slower"), (0.95, "faster"), (2.0, "slower")],
)
def test_a_difference_below_the_noise_floor_is_a_tie(
    base: Cost, factor: float, verdict: str
) -> None:
    comparison = compare(base, slower(base, factor), "decode", 512, 1)
    assert comparison is not None
    assert comparison.verdict == verdict
    assert comparison.ratio == pytest.approx(factor)
    assert comparison.low <= comparison.ratio <= comparison.high


def test_an_interval_that_holds_one_is_a_tie(base: Cost) -> None:
    """Medians apart by more than the noise floor prove nothing where the samples scatter."""
    wild = point("decode", 512, 1.6, samples_ms=samples(1.6, spread=0.8, seed=3))
    other = base.model_copy(update={"points": [wild], "environment": {"session": "t"}})
    comparison = compare(base, other, "decode", 512, 1)
    assert comparison is not None
    assert comparison.low < 1 < comparison.high
    assert comparison.verdict == "tie"
    assert "different sessions" in comparison.notes


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"device": "another"}, "device: "),
        ({"dtype": "bf16"}, "dtype: fp32 against bf16"),
        ({"protocol": {"threads": 2, "version": 1}}, "protocol threads: 1 against 2"),
        ({"environment": {"session": "s", "co_running_cores": 1.5}}, "the host was busy"),
    ],
)
def test_what_cannot_be_compared_is_not(base: Cost, changes: dict[str, Any], note: str) -> None:
    comparison = compare(base, slower(base, 0.5, **changes), "decode", 512, 1)
    assert comparison is not None
    assert comparison.verdict == "not comparable"
    assert any(found.startswith(note) for found in comparison.notes)


def test_mixed_kernels_are_compared_and_named(base: Cost) -> None:
    other = base.model_copy(update={"points": [point("decode", 512, 9.0, kernel="sdpa math")]})
    comparison = compare(base, other, "decode", 512, 1)
    assert comparison is not None
    assert comparison.verdict == "slower"
    assert "kernel: sdpa flash against sdpa math" in comparison.notes
    assert mixtures([base, other]) == {"decode kernel": ["sdpa flash", "sdpa math"]}
    assert mixtures([base, base]) == {}


def test_a_place_that_was_not_measured_has_no_comparison(base: Cost) -> None:
    assert compare(base, base, "decode", 999, 1) is None


def test_a_busy_host_is_told_from_the_record(base: Cost) -> None:
    assert not disturbed(base)
    assert disturbed(base.model_copy(update={"environment": {"co_running_cores": 0.3}}))


def test_bootstrap_intervals_cover_the_median_and_shrink_with_samples() -> None:
    few, many = samples(5.0)[:9], samples(5.0) * 9
    assert median_interval(few)[0] <= 5.0 <= median_interval(few)[1]
    widths = [high - low for low, high in map(median_interval, (few, many))]
    assert widths[1] < widths[0]


def test_pairs_cancel_what_both_suffer() -> None:
    drift = np.linspace(1, 2, 41)
    paired = ratio_interval(drift, 1.1 * drift, paired=True)
    apart = ratio_interval(drift, 1.1 * drift, paired=False)
    assert paired == pytest.approx((1.1, 1.1))
    assert apart[1] - apart[0] > 0.1


def test_both_readings_of_the_best_kernel(base: Cost) -> None:
    costs = [base, slower(base, 0.5, backend="eager"), slower(base, 2.0, backend="flex")]
    (choice,) = fixed_and_best(costs, "sdpa", "decode", 512, 1)
    assert choice.fixed_ms == pytest.approx(1.512)
    assert choice.best_ms == pytest.approx(0.756)
    assert choice.best_backend == "eager"


def test_the_growth_with_the_context_is_found_again(base: Cost) -> None:
    decode = fit_context(base, "decode", 1)
    assert decode is not None
    assert (decode.fixed_ms, decode.linear_ms) == pytest.approx((1.0, 1e-3), rel=1e-6)
    assert decode.quadratic_ms == 0
    assert decode.overhead_share(1000) == pytest.approx(0.5)
    prefill = fit_context(base, "prefill", 1)
    assert prefill is not None
    assert (prefill.fixed_ms, prefill.linear_ms, prefill.quadratic_ms) == pytest.approx(
        (1.0, 1e-2, 1e-4), rel=1e-6
    )
    assert prefill.quadratic_share(100) == pytest.approx(1 / 3)
    assert prefill.exponent(10**7) == pytest.approx(2, abs=1e-3)
    assert fit_context(base, "decode", 7) is None


def test_a_fitted_exponent_is_the_power() -> None:
    assert fitted_exponent([1, 2, 4], [3, 12, 48]) == pytest.approx(2)


def test_sharing_pays_from_the_context_where_it_stays_faster(base: Cost) -> None:
    quick = [point("decode", t, 1 + t / 4000) for t in CONTEXTS]
    mqa = base.model_copy(update={"points": quick})
    # At 128 it gains 8.6%: (1 + .128) / (1 + .032) - 1 = 9.3%, above the floor of 3%.
    assert pays_from(base, mqa, 1) == 128
    noisy = base.model_copy(update={"noise_floor": 0.2})
    assert pays_from(noisy, mqa, 1) == 512
    assert pays_from(mqa, base, 1) is None
