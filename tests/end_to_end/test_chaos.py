"""Four commands on one folder, killed at random again and again: nothing is lost, nothing is torn."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.conftest import SMALL
from tests.end_to_end.test_command import ENVIRONMENT, headcount, records

from headcount.study.store import Study
from headcount.training.journal import read_rows

pytestmark = pytest.mark.slow

KILLS = 50

STUDY = (
    "train", "-m", *SMALL, "study=k", "seed=0,1,2,3", "model.n_heads=2,4", "model.dropout=0.1",
    "trainer.max_steps=4000", "trainer.val_every_steps=500", "hydra.sweeper.waves=[training]",
    "hydra/launcher=in_process",
)  # fmt: skip


def outcome(folder: Path) -> list[tuple]:
    study = Study(folder)
    return [
        (
            r["run_id"], r["status"], r["quality"], r["training"]["steps"], r["training"]["tokens"],
            read_rows(study.run_folder(r["run_id"]) / "metrics.jsonl"),
        )
        for r in records(folder)
    ]  # fmt: skip


def test_fifty_kills_change_nothing(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    clean = headcount(*[o for o in STUDY if "launcher" not in o], cwd=whole)
    assert clean.returncode == 0, clean.stdout + clean.stderr
    folder = killed / "results" / "k"

    def start() -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-m", "headcount.cli", *STUDY],
            cwd=killed, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip

    draw = random.Random(0)
    workers = [start() for _ in range(4)]
    kills = 0
    completed: dict[str, int] = {}
    while kills < KILLS:
        # Kills come while runs are at work, at any moment of them; a finished study ends the test.
        _wait_until_one_trains(folder, workers)
        time.sleep(draw.uniform(0, 0.5))
        victim = draw.randrange(4)
        workers[victim].send_signal(signal.SIGKILL)
        workers[victim].wait()
        kills += 1
        for path in folder.glob("runs/*/record.json"):
            record = json.loads(path.read_text())  # never torn
            if record["status"] == "completed":
                changed = path.stat().st_mtime_ns
                assert completed.setdefault(record["run_id"], changed) == changed  # exactly once
        workers[victim] = start()
    errors = [worker.communicate()[1].decode() for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0, 0, 0], errors

    assert outcome(folder) == outcome(whole / "results" / "k")
    assert sum(len(r["training"]["resumed_from"]) for r in records(folder)) > 0
    assert not list(folder.rglob("runs/*/.*")), "claims and half-written files are cleared away"


def _wait_until_one_trains(folder: Path, workers: list[subprocess.Popen]) -> None:
    deadline = time.monotonic() + 600
    while True:
        running = [r for r in records(folder) if r["status"] == "running"]
        if any(Study(folder).holder(r["run_id"]) for r in running):
            return
        assert not all(w.poll() is not None for w in workers), "done before the kills were"
        assert time.monotonic() < deadline
        time.sleep(0.05)
