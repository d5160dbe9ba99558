"""`headcount sync`: every run of a study once, whatever it was logged with and however often it is sent."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import headcount
from headcount import cli
from headcount.errors import HeadcountError
from headcount.hydra_app import compose
from headcount.study.run import execute
from headcount.study.store import Study
from headcount.tracking.sync import sync
from headcount.training.journal import read_rows
from tests.conftest import SMALL
from tests.tracking.conftest import forget_session, give_cost
from tests.tracking.loopback import Loopback


@pytest.fixture
def offline_study(copy_of) -> Study:
    """Three runs: logged offline, with no logger, and one that failed."""

    def build(results: Path) -> None:
        base = [*SMALL, f"paths.results={results}", "study=off"]
        thin = compose([*base, "logger=wandb", "model.n_heads=2"])
        unlogged = compose([*base, "model.n_heads=4"])
        failing = compose([*base, "logger=wandb", "seed=5", "trainer.strategy=nonsense"])
        for config in (thin, unlogged):
            give_cost(config)
        statuses = [execute(config).status for config in (thin, unlogged, failing)]
        assert statuses == ["completed", "completed", "failed"]

    return copy_of("off", build)


def assert_whole(server: Loopback, study: Study) -> None:
    """Every run of the study stands on the server once, with all that its files say."""
    records = list(study.records())
    assert set(server.runs) == {f"off-{r.run_id}" for r in records}
    for record in records:
        run = server.runs[f"off-{record.run_id}"]
        every = record.config["logger"]["every_steps"]
        rows = read_rows(study.run_folder(record.run_id) / "metrics.jsonl")
        expected = {
            r["step"]: r["train/loss"]
            for r in rows
            if "train/loss" in r and (r["step"] == 1 or r["step"] % every == 0)
        }
        assert run.series("train/loss") == expected
        steps = [row["_step"] for row in run.history]
        assert steps == sorted(set(steps))
        assert run.series("val/loss") == {r["step"]: r["val/loss"] for r in rows if "val/loss" in r}
        for key, value in record.headline().items():
            assert run.summary[key] == value, key
        assert run.summary["status"] == record.status
        assert run.config_value("headcount") == record.config
        assert run.state == ("finished" if record.status == "completed" else "failed")
        assert run.group == "off"


def test_every_run_goes_up_once(offline_study, server, capsys, monkeypatch):
    outcome = sync(offline_study, None, None)
    assert (len(outcome.uploaded), len(outcome.already_there)) == (3, 0)
    assert not outcome.failed
    assert_whole(server, offline_study)
    upserts = {name: run.upserts for name, run in server.runs.items()}

    # Once more, by the command: nothing is sent.
    monkeypatch.setattr(sys, "argv", ["headcount", "sync", str(offline_study.folder)])
    cli.main()
    assert "0 uploaded, 3 already there" in capsys.readouterr().out
    assert {name: run.upserts for name, run in server.runs.items()} == upserts

    # Without the notes (another machine): asked, found there, nothing doubled.
    for note in offline_study.folder.glob("runs/*/wandb/uploaded.json"):
        note.unlink()
    assert len(sync(offline_study, None, None).uploaded) == 3
    assert_whole(server, offline_study)


def test_a_damaged_record_holds_no_other_run_back(offline_study, server, capsys, monkeypatch):
    path = next(offline_study.runs.glob("*/record.json"))
    whole = path.read_text()
    try:
        path.write_text("{")
        monkeypatch.setattr(sys, "argv", ["headcount", "sync", str(offline_study.folder)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    finally:
        path.write_text(whole)
    shown = capsys.readouterr()
    assert ended.value.code == 1
    assert "2 uploaded, 0 already there, 1 failed" in shown.out
    assert f"{path}: not a record" in shown.err


def test_another_project_is_another_place(offline_study, server):
    sync(offline_study, None, None)
    outcome = sync(offline_study, "elsewhere", None)
    assert len(outcome.uploaded) == 3


def test_killed_midway_and_repeated(offline_study, server):
    """SIGKILL while the second run's curve goes up; again: every run once, every curve whole."""
    seen, gone = threading.Event(), threading.Event()

    def hold_the_second_curve(run) -> None:
        if sum(bool(r.history) for r in server.runs.values()) == 2:
            seen.set()
            gone.wait(60)

    server.on_stream = hold_the_second_curve
    command = [sys.executable, "-m", "headcount.cli", "sync", str(offline_study.folder)]
    environment = os.environ | {"PYTHONPATH": str(Path(headcount.__file__).parents[1])}
    environment.pop("WANDB_SERVICE", None)
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert seen.wait(120)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    gone.set()
    outcome = sync(offline_study, None, None)
    assert not outcome.failed
    assert len(outcome.already_there) >= 1
    assert len(outcome.uploaded) >= 1
    assert_whole(server, offline_study)


def test_a_run_at_work_is_left_alone(offline_study, server):
    at_work = next(offline_study.records()).run_id
    with offline_study.claim(at_work):
        outcome = sync(offline_study, None, None)
    assert outcome.at_work == [at_work]
    assert len(outcome.uploaded) == 2


def test_a_dead_server_is_told_in_one_line(offline_study, monkeypatch):
    dead = Loopback()
    for name, value in dead.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "1")
    dead.close()
    forget_session()
    with pytest.raises(HeadcountError, match=dead.url) as told:
        sync(offline_study, None, None)
    assert "\n" not in str(told.value)
    forget_session()
