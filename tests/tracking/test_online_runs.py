"""Runs on a W&B server: the same as offline, and what the server does wrong costs no training."""

import os
import signal

import pytest

from headcount.study.run import execute
from headcount.training import progress as progress_module
from headcount.training.journal import read_rows
from tests.tracking.conftest import forget_session, give_cost, run_folder
from tests.tracking.datastore import read
from tests.tracking.loopback import Loopback


@pytest.fixture
def online(logged, server):
    return lambda *overrides: logged("logger.mode=online", *overrides)


def test_a_run_arrives_whole(online, server):
    config = online("model.n_heads=2", "study=whole", "logger.project=heads")
    give_cost(config)
    record = execute(config)
    [run] = server.runs.values()
    assert (run.name, run.project) == (f"whole-{record.run_id}", "heads")
    assert run.state == "finished"
    assert run.group == "whole"
    assert run.config_value("headcount") == record.config
    for key, value in record.headline().items():
        assert run.summary[key] == value, key
    rows = read_rows(run_folder(config, record.run_id) / "metrics.jsonl")
    for key in ("train/loss", "val/loss", "lr"):
        assert run.series(key) == {r["step"]: r[key] for r in rows if key in r}
    assert run.summary["latency/grid"]["_type"] == "table-file"
    assert any(name.startswith("media/table/latency/grid") for name in run.files)


def test_a_resumed_run_goes_on_in_the_same_run_without_doubling_a_step(online, server, monkeypatch):
    config = online()
    with monkeypatch.context() as patched:
        original = progress_module.RunProgress.on_train_batch_end

        def hook(self, trainer, *args):
            original(self, trainer, *args)
            if trainer.global_step == 8:
                os.kill(os.getpid(), signal.SIGTERM)

        patched.setattr(progress_module.RunProgress, "on_train_batch_end", hook)
        assert execute(config).status == "interrupted"
    [run] = server.runs.values()
    assert (run.state, run.exit_code, run.summary["status"]) == ("failed", 130, "interrupted")
    assert len(run.history) == 9

    record = execute(config)
    [run] = server.runs.values()
    assert (run.state, run.summary["status"]) == ("finished", "completed")
    assert [row["_step"] for row in run.history] == list(range(1, 21))
    rows = read_rows(run_folder(config, record.run_id) / "metrics.jsonl")
    assert run.series("train/loss") == {
        r["step"]: r["train/loss"] for r in rows if "train/loss" in r
    }


def assert_not_lost(config, record, err: str, *words: str) -> None:
    """The run is complete, stands offline, and one line said what was wrong."""
    assert record.status == "completed"
    folder = run_folder(config, record.run_id)
    assert len(read_rows(folder / "metrics.jsonl")) == 24
    assert record.quality.test_loss is not None
    lines = [line for line in err.splitlines() if line.strip()]
    assert len(lines) == 1, err
    assert lines[0].startswith("headcount: W&B: ")
    for word in (*words, "headcount sync"):
        assert word in lines[0]


def test_a_wrong_key(online, server, monkeypatch, capfd):
    monkeypatch.setenv("WANDB_API_KEY", "f" * 40)
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "10")
    forget_session()
    config = online("study=wrong_key")
    record = execute(config)
    assert_not_lost(config, record, capfd.readouterr().err, server.url, "wrong_key")
    assert not server.runs
    assert len(read(run_folder(config, record.run_id)).history) == 20


def test_no_key(online, server, monkeypatch, tmp_path, capfd):
    monkeypatch.delenv("WANDB_API_KEY")
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    forget_session()
    config = online()
    record = execute(config)
    assert_not_lost(config, record, capfd.readouterr().err, "no API key", "WANDB_API_KEY")
    assert len(read(run_folder(config, record.run_id)).history) == 20


def test_a_server_dead_from_the_start_is_waited_for_once(logged, monkeypatch, capfd):
    dead = Loopback()
    for name, value in dead.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "2")
    dead.close()
    forget_session()
    config = logged("logger.mode=online")
    record = execute(config)
    assert_not_lost(config, record, capfd.readouterr().err, dead.url)
    assert len(read(run_folder(config, record.run_id)).history) == 20
    again = logged("logger.mode=online", "seed=1")
    assert execute(again).status == "completed"
    assert capfd.readouterr().err == ""
    forget_session()


@pytest.mark.parametrize("moment", ["during", "end"])
def test_a_server_that_dies(logged, monkeypatch, capfd, moment):
    dying = Loopback()
    for name, value in dying.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WANDB_FINISH_TIMEOUT", "2")
    forget_session()
    original = progress_module.RunProgress.on_train_batch_end

    def hook(self, trainer, *args):
        if trainer.global_step == {"during": 5, "end": 20}[moment]:
            dying.close()
        original(self, trainer, *args)

    monkeypatch.setattr(progress_module.RunProgress, "on_train_batch_end", hook)
    config = logged("logger.mode=online")
    record = execute(config)
    assert_not_lost(config, record, capfd.readouterr().err)
    forget_session()
