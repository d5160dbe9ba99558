"""The same study through a real SLURM and a local Ray: what a laptop gives, they give."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.conftest import SMALL
from tests.end_to_end import slurm
from tests.end_to_end.test_command import ENVIRONMENT, records

pytestmark = pytest.mark.slow

STUDY = (
    "train", "-m", *SMALL, "study=c", "seed=0,1", "model.n_heads=2,4", "trainer.max_steps=3000",
    "trainer.val_every_steps=500", "model.dropout=0.1", "hydra.sweeper.waves=[training]",
)  # fmt: skip
"""Four runs of some ten seconds each, their dropout drawn anew in every step."""


def run(cwd: Path, *more: str, environment=ENVIRONMENT) -> subprocess.Popen:
    cwd.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "headcount.cli", *STUDY, *more],
        cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def finish(process: subprocess.Popen) -> str:
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0, out
    return out


def results(cwd: Path) -> list[tuple]:
    return [
        (r["run_id"], r["status"], r["quality"], r["training"]["tokens"])
        for r in records(cwd / "results" / "c")
    ]


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    cwd = tmp_path_factory.mktemp("local")
    finish(run(cwd))
    assert [r[1] for r in results(cwd)] == ["completed"] * 4
    return results(cwd)


def wait_for(condition, seconds=300.0):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)
    return found


def half_trained(folder: Path) -> list[dict]:
    return [r for r in records(folder) if r["status"] == "running" and r["training"]["steps"] > 200]


@pytest.mark.skipif(slurm.missing() is not None, reason=str(slurm.missing()))
def test_slurm_gives_the_same_and_a_requeued_job_goes_on(tmp_path, local):
    pytest.importorskip("submitit", reason="the slurm extra is not installed")
    with slurm.cluster() as client:
        environment = {**ENVIRONMENT, **client}
        cwd = tmp_path / "study"
        process = run(
            cwd, "hydra/launcher=slurm", "hydra.launcher.mem=600M", environment=environment
        )
        folder = cwd / "results" / "c"
        try:
            found = wait_for(lambda: half_trained(folder) or process.poll() is not None)
            assert process.poll() is None, process.communicate()[0]
            victim = found[0]["run_id"]
            job = slurm.job_of(owner(folder, victim))
            # What SLURM sends a job that must make room for another: submitit queues it again.
            subprocess.run(["scancel", "--signal=USR2", job], env=environment, check=True)
            finish(process)
        finally:
            process.kill()
        assert results(cwd) == local
        again = next(r for r in records(folder) if r["run_id"] == victim)
        assert again["training"]["resumed_from"]
        left = subprocess.run(["squeue", "-h"], env=environment, capture_output=True, text=True)
        assert left.stdout == ""


def test_ray_gives_the_same_and_a_killed_task_fails_alone(tmp_path, local):
    pytest.importorskip("ray", reason="the ray extra is not installed")
    environment = {
        **ENVIRONMENT, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
    }  # fmt: skip
    process = run(tmp_path, "hydra/launcher=ray", "retries=1", environment=environment)
    folder = tmp_path / "results" / "c"
    try:
        (victim, *_) = wait_for(lambda: half_trained(folder))
        os.kill(owner(folder, victim["run_id"]), 9)
        out = finish(process)
    finally:
        process.kill()
    assert results(tmp_path) == local
    again = next(r for r in records(folder) if r["run_id"] == victim["run_id"])
    assert again["training"]["resumed_from"], out


def owner(folder: Path, run_id: str) -> int:
    from headcount.study.store import Study

    holder = Study(folder).holder(run_id)
    assert holder is not None
    return holder.pid
