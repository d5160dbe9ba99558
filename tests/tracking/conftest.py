"""Runs that log to W&B, offline or on a server of the test's own."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headcount.config import Config
from headcount.measure.protocol import cost_id
from headcount.measure.record import layout_record
from headcount.study.records import Compute, Cost, KVCache, Memory, Point
from headcount.study.store import Study
from headcount.tracking import loggers
from tests.tracking.loopback import Loopback


@pytest.fixture
def logged(small: Callable) -> Callable[..., Config]:
    """A small configuration that logs to W&B; every step, unless said otherwise."""
    return lambda *overrides: small("logger=wandb", "logger.every_steps=1", *overrides)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    """A W&B server, which this process and its children find and have a key for."""
    loopback = Loopback()
    for name, value in loopback.environment().items():
        monkeypatch.setenv(name, value)
    forget_session()
    yield loopback
    loopback.close()
    forget_session()
    assert not loopback.unknown


_built: dict[str, Path] = {}


@pytest.fixture
def copy_of(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Study]:
    """A copy of a study that is made once, by `build(results folder)`, for all tests that ask."""

    def copy(name: str, build: Callable[[Path], None]) -> Study:
        if name not in _built:
            results = tmp_path_factory.mktemp(name)
            build(results)
            _built[name] = results
        shutil.copytree(_built[name], tmp_path / "results", symlinks=True)
        return Study(tmp_path / "results" / name)

    return copy


@pytest.fixture(autouse=True)
def _fresh_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget which servers earlier tests found dead."""
    monkeypatch.setattr(loggers, "_out_of_reach", set())


def forget_session() -> None:
    """W&B reads the environment once a process: read it anew."""
    import wandb
    from wandb.sdk.lib import wbauth

    wandb.teardown()
    wbauth.unauthenticate_session(update_settings=False)


def give_cost(config: Config) -> Cost:
    """A cost record of made-up figures, so that nothing is measured in a test of something else."""
    shape, h = config.shape, config.layout.n_kv_heads
    points = [
        Point(
            phase=phase,
            context=16,
            batch_size=1,
            samples_ms=[ms] * 3,
            p50_ms=ms,
            p90_ms=ms * 1.5,
            p99_ms=ms * 2,
            kernel="flash",
            kv_sharing="grouped rows",
        )
        for phase, ms in (("prefill", 2.0 * h), ("decode", 0.5 * h))
    ]
    figures = shape.account("fp32", 16)
    cost = Cost(
        cost_id=cost_id(config),
        layout=layout_record(config),
        shape=shape.as_dict(),
        dtype="fp32",
        device="test",
        backend="sdpa",
        protocol={
            "contexts": [16],
            "batch_sizes": [1],
            "repeats": 3,
            "headline_context": 16,
            "headline_batch_size": 1,
        },
        environment={},
        points=points,
        memory=Memory(
            weights_bytes=1000, decode_peak_bytes=2000, train_peak_bytes=3000, method="made up"
        ),
        kv_cache=KVCache(
            bytes_per_token=figures["kv_cache/bytes_per_token"],
            allocated_bytes=16 * figures["kv_cache/bytes_per_token"],
            used_bytes=16 * figures["kv_cache/bytes_per_token"],
        ),
        compute=Compute(
            n_params=figures["compute/n_params"],
            n_params_attention=figures["compute/n_params_attention"],
            train_flops_per_token=figures["compute/train_flops_per_token"],
        ),
        measured="2026-01-01T00:00:00+00:00",
    )
    Study.of(config).write_cost(cost)
    return cost


def run_folder(config: Config, run_id: str) -> Path:
    return Study.of(config).run_folder(run_id)
