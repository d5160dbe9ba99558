"""The interleaved clock, the kernel that is seen, and the noise floor."""

from collections.abc import Callable

import pytest
import torch

from headcount.config import Config
from headcount.errors import HeadcountError
from headcount.measure.clock import interleave
from headcount.measure.grid import Candidate, noise_floor
from headcount.measure.kernels import kernel_of
from headcount.study.records import Point

Make = Callable[..., Config]
CPU = torch.device("cpu")


def test_every_round_calls_each_once_in_an_order_of_its_own() -> None:
    order: list[str] = []
    calls = [lambda name=name: order.append(name) for name in "abc"]
    samples = interleave(calls, CPU, repeats=20, warmup=2, min_ms=0, min_warmup_ms=0)
    assert [len(s) for s in samples] == [20, 20, 20]
    warm, timed = order[:6], order[6:]
    assert warm == list("aabbcc")
    # Each timed call stands behind an untimed one of the same.
    assert timed[::2] == timed[1::2]
    rounds = [tuple(timed[i : i + 6 : 2]) for i in range(0, len(timed), 6)]
    assert all(sorted(one) == list("abc") for one in rounds)
    assert len(set(rounds)) > 1


def test_short_calls_are_repeated_until_they_last() -> None:
    calls = [lambda: sum(range(1000))]
    few = interleave(calls, CPU, repeats=3, warmup=3, min_ms=0, min_warmup_ms=0)
    many = interleave(calls, CPU, repeats=3, warmup=3, min_ms=1, min_warmup_ms=0)
    assert len(few[0]) == 3 < len(many[0])


def test_samples_are_what_the_clock_says() -> None:
    """Two calls of 3 and 5 ms by a clock that only they advance."""
    clock = {"ns": 0}

    def spend(ms: int) -> Callable[[], None]:
        return lambda: clock.update(ns=clock["ns"] + ms * 1_000_000)

    calls = [spend(3), spend(5)]
    samples = interleave(calls, CPU, 4, 1, min_ms=0, min_warmup_ms=0, now=lambda: clock["ns"])
    assert samples == [[3.0] * 4, [5.0] * 4]
    # 60 ms of the faster call take 20 rounds, and every call is given as many.
    longer = interleave(calls, CPU, 4, 1, min_ms=60, min_warmup_ms=0, now=lambda: clock["ns"])
    assert [len(s) for s in longer] == [20, 20]


def point(p50_ms: float) -> Point:
    return Point(
        phase="decode", context=1, batch_size=1, samples_ms=[p50_ms], p50_ms=p50_ms, p90_ms=p50_ms,
        p99_ms=p50_ms, kernel="sdpa flash", kv_sharing="none to share",
    )  # fmt: skip


def test_the_noise_floor_is_the_largest_difference_between_the_two_names() -> None:
    one, again = [point(1.0), point(2.0)], [point(1.1), point(2.0)]
    assert noise_floor(one, again) == pytest.approx(0.1)
    assert noise_floor(again, one) == pytest.approx(0.1)


def test_the_kernel_is_read_off_the_calls_that_are_made(config: Make) -> None:
    gqa = Candidate(config(model__attention="gqa", model__n_kv_heads=2), CPU)
    gqa.open(context=16, batch_size=2)
    with torch.inference_mode():
        prefill = kernel_of(gqa.call("prefill"), gqa.shape.layout, "sdpa")
        decode = kernel_of(gqa.call("decode"), gqa.shape.layout, "sdpa")
        other = kernel_of(lambda: None, gqa.shape.layout, "materialised")
    assert prefill[0] == decode[0] == "sdpa flash"
    assert decode[1] == "grouped rows"
    assert other == ("materialised", "by the backend")


def test_decode_stays_at_its_context(config: Make) -> None:
    candidate = Candidate(config(), CPU)
    candidate.open(context=16, batch_size=1)
    with torch.inference_mode():
        candidate.call("prefill")()
        step = candidate.call("decode")
        first, second = step(), step()
    assert candidate.cache.length == 16
    assert torch.equal(first, second)


def test_a_cache_that_is_not_what_the_formula_says_is_refused(config: Make) -> None:
    candidate = Candidate(config(model__attention="mqa"), CPU)
    candidate.open(context=16, batch_size=1)
    k, v = candidate.cache.tensors
    candidate.cache.tensors = (k.repeat(1, 1, 8, 1, 1), v)  # as if expanded before caching
    with pytest.raises(HeadcountError, match="the live KV cache holds"):
        candidate.kv_cache()
