"""The cost wave: what it measures, reuses and writes, and how it fails and ends."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from headcount.config import Config
from headcount.errors import HeadcountError
from headcount.measure import wave
from headcount.measure.lock import host_lock
from headcount.measure.protocol import cost_id
from headcount.study.records import Cost
from headcount.study.store import Study

Make = Callable[..., Config]


def test_every_layout_has_a_written_record(
    study: Study, layouts: list[Config], measured: dict[str, Cost]
) -> None:
    assert list(measured) == [cost_id(config) for config in layouts]
    assert [cost.layout.label for cost in measured.values()] == [
        "mha h8",
        "gqa h8/kv2",
        "mqa h8/kv1",
    ]
    for name, cost in measured.items():
        assert study.cost(name) == cost


def test_every_place_of_the_grid_is_timed_with_its_samples(measured: dict[str, Cost]) -> None:
    for cost in measured.values():
        places = {(p.phase, p.context, p.batch_size) for p in cost.points}
        assert places == {
            (f, c, b) for f in ("prefill", "decode") for c in (16, 64) for b in (1, 2)
        }
        for point in cost.points:
            assert len(point.samples_ms) >= 3
            assert min(point.samples_ms) > 0
            assert point.p50_ms == pytest.approx(np.median(point.samples_ms), rel=1e-3)
            assert point.p50_ms <= point.p90_ms <= point.p99_ms


def test_layouts_are_sampled_in_pairs(measured: dict[str, Cost]) -> None:
    """Interleaved rounds leave as many samples of one layout as of another, at each place."""
    per_layout = [[len(p.samples_ms) for p in cost.points] for cost in measured.values()]
    assert per_layout[0] == per_layout[1] == per_layout[2]


def test_the_kv_cache_shrinks_exactly_with_the_kv_heads(measured: dict[str, Cost]) -> None:
    mha, gqa, mqa = (cost.kv_cache for cost in measured.values())
    assert mha.bytes_per_token == 2 * 2 * 8 * 4 * 4  # k and v, layers, KV heads, d_head, fp32
    assert mha.bytes_per_token == 4 * gqa.bytes_per_token == 8 * mqa.bytes_per_token
    for cache in (mha, gqa, mqa):
        assert cache.allocated_bytes == cache.used_bytes == 64 * cache.bytes_per_token


def test_kernel_and_kv_sharing_are_recorded(measured: dict[str, Cost]) -> None:
    mha, gqa, mqa = measured.values()
    assert {p.kv_sharing for p in mha.points} == {"none to share"}
    for cost in (gqa, mqa):
        assert {p.kv_sharing for p in cost.points if p.phase == "decode"} == {"grouped rows"}
    assert {p.kernel for cost in measured.values() for p in cost.points} == {"sdpa flash"}


def test_protocol_environment_and_noise_are_recorded(measured: dict[str, Cost]) -> None:
    floors = set()
    for cost in measured.values():
        assert cost.protocol["headline_context"] == 64
        assert cost.protocol["headline_batch_size"] == 1
        assert cost.protocol["interleaved"] == 3
        assert cost.protocol["threads"] == cost.environment["threads"] == 1
        assert {
            "torch",
            "python",
            "cpu",
            "load_average",
            "busy_processes",
            "co_running_cores",
        } <= set(cost.environment)
        decode = cost.point("decode", 64, 1)
        assert decode is not None
        assert cost.headline()["latency/decode_ms_per_token_p50"] == decode.p50_ms
        floors.add(cost.noise_floor)
        assert cost.train_step is not None
        assert (cost.train_step.context, cost.train_step.batch_size) == (16, 4)
        for point in cost.points:
            assert point.bound_ms is not None
            assert 0 < point.bound_ms < point.p50_ms
    assert len({cost.environment["session"] for cost in measured.values()}) == 1
    (floor,) = floors
    assert floor is not None
    assert floor > 0


def test_records_that_exist_are_reused_and_only_the_rest_is_measured(
    study: Study,
    layouts: list[Config],
    measured: dict[str, Cost],
    config: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[list[Config]] = []

    def session(study: Study, configs: list[Config], waited_s: float, report: object) -> list[Cost]:
        asked.append(configs)
        template = next(iter(measured.values()))
        return [template.model_copy(update={"cost_id": cost_id(c)}) for c in configs]

    monkeypatch.setattr(wave, "_session", session)
    assert wave.cost_wave(study, layouts) == measured
    assert asked == []

    seeds = [config(model__n_heads=2, seed=seed) for seed in (0, 1)]
    out = wave.cost_wave(study, [*layouts, *seeds])
    assert list(out) == [*measured, cost_id(seeds[0])]
    assert [len(group) for group in asked] == [1]


def test_dtypes_are_measured_together_and_grids_apart(
    empty_study: Study, measured: dict[str, Cost], config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def session(study: Study, configs: list[Config], waited_s: float, report: object) -> list[Cost]:
        asked.append(len(configs))
        template = next(iter(measured.values()))
        return [template.model_copy(update={"cost_id": cost_id(c)}) for c in configs]

    monkeypatch.setattr(wave, "_session", session)
    points = [config(), config(measure__dtype="bf16"), config(measure__contexts=[8])]
    assert len(wave.cost_wave(empty_study, points)) == 3
    assert asked == [2, 1]


def test_progress_runs_to_its_end(empty_study: Study, config: Make) -> None:
    told: list[tuple[str, int, int]] = []
    one = config(
        measure__contexts=[4],
        measure__batch_sizes=[1],
        measure__dtype="bf16",
        model__position="learned",
        task__seq_len=2,
    )
    (cost,) = wave.cost_wave(empty_study, [one], lambda *event: told.append(event)).values()
    assert [(done, total) for _, done, total in told] == [(n, 5) for n in range(1, 6)]
    assert told[1][0] == "prefill at context 4, batch 1"
    # bf16 halves the cache; the learned table of 2 was extended, and the record says so.
    assert cost.kv_cache.bytes_per_token == 2 * 2 * 8 * 4 * 2
    assert any("extended from 2 to 4" in warning for warning in cost.warnings)
    assert cost.memory.weights_bytes == 2 * one.shape.n_params


def test_a_session_that_fails_is_one_clear_line(empty_study: Study, config: Make) -> None:
    endless = config(measure__contexts=[10**13])
    with pytest.raises(HeadcountError, match=r"^measuring failed: the KV caches of 2 ") as caught:
        wave.cost_wave(empty_study, [endless])
    assert "\n" not in str(caught.value)
    assert "Traceback" in (empty_study.costs / "session.log").read_text()
    assert list(empty_study.cost_records()) == []


def test_a_session_that_is_killed_says_so(
    empty_study: Study, config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = wave._start

    def killed(threads: int, errors: object) -> subprocess.Popen[str]:
        child = start(threads, errors)  # type: ignore[arg-type]
        child.kill()
        return child

    monkeypatch.setattr(wave, "_start", killed)
    with pytest.raises(HeadcountError, match="ended by signal 9"):
        wave.cost_wave(empty_study, [config()])


def test_a_killed_parent_leaves_no_orphan(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from pathlib import Path; from conftest import make\n"
        "from headcount.measure.wave import cost_wave; from headcount.study.store import Study\n"
        "import tempfile; tempfile.tempdir = sys.argv[1]\n"
        "cost_wave(Study(Path(sys.argv[1]) / 'costs'), [make(measure__repeats=10**6)],\n"
        "          lambda *event: print(event, flush=True))\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), str(Path(__file__).parent)],
        stdin=subprocess.DEVNULL,
    )
    try:
        (child,) = _eventually(lambda: psutil.Process(parent.pid).children())
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        assert _eventually(lambda: not child.is_running())
    finally:
        with contextlib.suppress(ProcessLookupError):
            parent.kill()


def test_a_second_measurement_on_the_host_waits() -> None:
    waits, entered = threading.Event(), threading.Event()
    waited: list[float] = []

    def second() -> None:
        with host_lock(waits.set) as seconds:
            waited.append(seconds)
            entered.set()

    with host_lock():
        thread = threading.Thread(target=second)
        thread.start()
        assert waits.wait(60)
        since = time.monotonic()
        assert not entered.wait(0.05)
        held = time.monotonic() - since
    thread.join(60)
    assert entered.is_set()
    assert waited[0] >= held


def _eventually(condition: Callable[[], Any], seconds: float = 120.0) -> Any:
    """The condition's first true value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return value
