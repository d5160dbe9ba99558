"""Every statistic against an independent computation: scipy.stats, brute force, or a published
table."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from headcount.analysis import statistics


def test_t_interval_is_scipys() -> None:
    values = np.array([1.91, 1.95, 1.90, 1.97])
    expected = stats.t.interval(0.95, 3, loc=values.mean(), scale=stats.sem(values))
    found = statistics.t_interval(values)
    assert (found.low, found.high) == pytest.approx(expected)
    assert found.estimate == pytest.approx(values.mean())


def test_one_value_has_no_interval() -> None:
    assert statistics.t_interval(np.array([2.0])).half_width == float("inf")


def test_pooled_error_of_two_layouts_is_the_paired_t_test() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 6))
    variance, df = statistics.residual_variance(np.array([a, b]))
    error = np.sqrt(2 * variance / 6)
    expected = stats.ttest_rel(a, b)
    assert df == 5
    assert statistics.p_difference((a - b).mean(), error, df) == pytest.approx(expected.pvalue)


@given(k=st.integers(2, 6), n=st.integers(2, 6), seed=st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_pooled_error_is_the_two_way_residual(k: int, n: int, seed: int) -> None:
    table = np.random.default_rng(seed).normal(size=(k, n)) + 5
    residual = table - table.mean(1, keepdims=True) - table.mean(0) + table.mean()
    variance, df = statistics.residual_variance(table)
    assert df == (k - 1) * (n - 1)
    assert variance == pytest.approx((residual**2).sum() / df)


def test_pooled_error_ignores_what_seeds_and_layouts_shift() -> None:
    rng = np.random.default_rng(1)
    table = rng.normal(size=(4, 5))
    table[1, 2] = np.nan
    shifted = table + 100 * rng.normal(size=(4, 1)) + 100 * rng.normal(size=(1, 5))
    first, second = statistics.residual_variance(table), statistics.residual_variance(shifted)
    assert first == pytest.approx(second)
    assert first[1] == 19 - 4 - 5 + 1


@pytest.mark.parametrize("table", [np.empty((0, 0)), np.ones((3, 1)), np.ones((1, 4))])
def test_no_pooled_error_without_pairs(table: np.ndarray) -> None:
    assert statistics.residual_variance(table)[1] == 0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=7))
@settings(deadline=None)
def test_holm_is_the_closed_bonferroni_test(p_values: list[float]) -> None:
    # Holm rejects i where every intersection that holds i is rejected by Bonferroni.
    m = len(p_values)
    expected = []
    for i in range(m):
        rest = [j for j in range(m) if j != i]
        sets = [{i, *others} for size in range(m) for others in itertools.combinations(rest, size)]
        expected.append(max(min(1, len(s) * min(p_values[j] for j in s)) for s in sets))
    assert statistics.holm(np.array(p_values)) == pytest.approx(expected)


def test_equivalence_is_scipys_two_one_sided_tests() -> None:
    d = np.array([0.001, -0.002, 0.003, 0.0005, -0.001])
    margin = 0.004
    upper = stats.ttest_1samp(d, margin, alternative="less").pvalue
    lower = stats.ttest_1samp(d, -margin, alternative="greater").pvalue
    found = statistics.p_equivalence(d.mean(), d.std(ddof=1) / np.sqrt(5), 4, margin)
    assert found == pytest.approx(max(upper, lower))


# Repeats of a GPT-2-size speed run, sd 0.0019 nats (80 repeats): smallest difference found at
# alpha .05 two-sided with power .8, by seeds an arm. The sd is rounded: .00191 gives the same.
NOISE_TABLE = {2: 0.0108, 3: 0.0059, 5: 0.0039, 10: 0.0025}


@pytest.mark.parametrize(("seeds", "difference"), NOISE_TABLE.items())
def test_power_agrees_with_the_published_noise_table(seeds: int, difference: float) -> None:
    found = statistics.minimum_detectable_difference(0.0019, seeds)
    assert found == pytest.approx(difference, abs=0.0001)
    assert statistics.seeds_needed(0.00191, difference + 0.00005) == seeds


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
def test_power_is_what_the_noncentral_t_says(seeds: int) -> None:
    difference = statistics.minimum_detectable_difference(0.0019, seeds)
    df = 2 * seeds - 2
    critical = stats.t.ppf(0.975, df)
    nc = difference / (0.0019 * np.sqrt(2 / seeds))
    power = stats.nct.sf(critical, df, nc) + stats.nct.cdf(-critical, df, nc)
    assert power == pytest.approx(0.8, abs=2e-4)


def test_paired_seeds_reach_their_power_by_simulation() -> None:
    sd, difference = 0.02, 0.03
    n = statistics.paired_seeds_needed(sd, difference, margin=0.01)
    assert n is not None
    rng = np.random.default_rng(3)

    def power(seeds: int) -> float:
        p = stats.ttest_1samp(rng.normal(difference, sd, (20_000, seeds)), 0, axis=1).pvalue
        return float((p <= 0.05).mean())

    assert power(n) >= 0.79
    assert power(n - 1) < 0.8


def test_seeds_out_of_reach_are_none() -> None:
    assert statistics.seeds_needed(1.0, 1e-6) is None


def test_bootstrap_needs_values_that_vary() -> None:
    assert statistics.bootstrap_t_interval(np.array([1.0, 2.0, 3.0])) is None
    assert statistics.bootstrap_t_interval(np.full(8, 0.5)) is None


@pytest.mark.parametrize("n", [5, 10])
def test_bootstrap_covers_near_its_nominal_rate(n: int) -> None:
    rng = np.random.default_rng(4)
    hits = 0
    for trial in range(600):
        interval = statistics.bootstrap_t_interval(rng.normal(size=n), resamples=600, seed=trial)
        assert interval is not None
        hits += interval.low <= 0 <= interval.high
    assert hits / 600 >= 0.92
