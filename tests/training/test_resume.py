"""A run stopped anywhere and taken up again gives what an undisturbed run gives, bit for bit."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch

from headcount.study import run as run_module
from headcount.study.run import execute
from headcount.study.store import Study
from headcount.training import progress as progress_module
from headcount.training.journal import read_rows

STOCHASTIC = ("model.dropout=0.2", "trainer.max_steps=20")


@pytest.fixture
def stop_at(monkeypatch):
    """Make the run do something right after the step's hooks at a given step, once."""

    def install(step: int, action) -> None:
        original = progress_module.RunProgress.on_train_batch_end
        done = []

        def hook(self, trainer, *args):
            original(self, trainer, *args)
            if trainer.global_step == step and not done:
                done.append(step)
                action(self, trainer)

        monkeypatch.setattr(progress_module.RunProgress, "on_train_batch_end", hook)

    return install


def outcome(record, config):
    """Everything of a run that must not depend on how often it was stopped."""
    study = Study.of(config)
    rows = read_rows(study.run_folder(record.run_id) / "metrics.jsonl")
    weights = torch.load(
        study.run_folder(record.run_id) / "checkpoints/last.ckpt", weights_only=True
    )["state_dict"]
    return record.quality, record.training.steps, record.training.tokens, rows, weights


def assert_same(a, b):
    assert a[:4] == b[:4]
    assert a[4].keys() == b[4].keys()
    assert all(torch.equal(a[4][key], b[4][key]) for key in a[4])


@pytest.mark.parametrize("accumulate", [1, 2])
def test_interrupted_and_resumed_equals_undisturbed(small, stop_at, accumulate):
    extra = (*STOCHASTIC, f"trainer.accumulate_grad_batches={accumulate}")
    whole_config = small(*extra, "study=whole")
    whole = execute(whole_config)
    assert whole.status == "completed"

    # SIGTERM in step 8 makes the run stop after step 9.
    stop_at(8, lambda progress, trainer: os.kill(os.getpid(), signal.SIGTERM))
    config = small(*extra, "study=stopped")
    stopped = execute(config)
    assert stopped.status == "interrupted"
    assert stopped.error.message == "SIGTERM"
    assert stopped.training.steps == 9

    resumed = execute(config)
    assert resumed.status == "completed"
    assert resumed.training.resumed_from == [9]
    assert_same(outcome(resumed, config), outcome(whole, whole_config))


def test_a_failure_between_checkpoints_loses_nothing_but_the_steps_since(
    small, stop_at, monkeypatch
):
    """Steps journalled after the last checkpoint are redone, and stand in the journal once."""
    monkeypatch.setattr(progress_module.RunProgress, "_checkpoint_due", lambda self: False)
    whole_config = small(*STOCHASTIC, "study=whole")
    whole = execute(whole_config)

    def save_then_journal_on(progress, trainer):
        progress._save(trainer)
        progress.journal.write({"step": 6, "tokens": 0, "train/loss": 0.0, "lr": 0.0})
        progress.journal.flush()
        raise RuntimeError("pulled the plug")

    stop_at(5, save_then_journal_on)
    config = small(*STOCHASTIC, "study=failed")
    failed = execute(config)
    assert failed.status == "failed"
    assert failed.error.message == "pulled the plug"
    log = (Study.of(config).run_folder(failed.run_id) / "run.log").read_text()
    assert "Traceback" in log
    assert "pulled the plug" in log

    resumed = execute(config)
    assert resumed.training.resumed_from == [5]
    assert resumed.error is None
    assert_same(outcome(resumed, config), outcome(whole, whole_config))


def test_of_a_checkpoint_that_counts_steps_otherwise_the_run_begins_anew(small, stop_at):
    """As one of Lightning's automatic optimisation does, which this program once used."""
    whole_config = small(*STOCHASTIC, "study=whole")
    whole = execute(whole_config)
    stop_at(8, lambda progress, trainer: os.kill(os.getpid(), signal.SIGTERM))
    config = small(*STOCHASTIC)
    stopped = execute(config)
    last = Study.of(config).run_folder(stopped.run_id) / "checkpoints/last.ckpt"
    saved = torch.load(last, weights_only=True)
    counts = saved["loops"]["fit_loop"][run_module.STEPS_TAKEN]
    counts["total"] = dict.fromkeys(counts["total"], 0)
    torch.save(saved, last)
    again = execute(config)
    assert again.training.resumed_from == []
    assert_same(outcome(again, config), outcome(whole, whole_config))


def test_a_completed_run_is_left_untouched(small):
    config = small()
    first = execute(config)
    files = {p: p.stat().st_mtime_ns for p in _files(config, first)}
    assert execute(config) == first
    assert {p: p.stat().st_mtime_ns for p in _files(config, first)} == files


def test_a_run_that_another_process_works_on_is_left_to_it(small):
    config = small()
    study = Study.of(config)
    running = run_module.new_record(config, study, None)
    study.write_record(running)
    with study.claim(running.run_id) as ours:
        assert ours
        assert execute(config).status == "running"
    assert execute(config).status == "completed"


def test_a_torn_journal_line_is_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps({"step": 1}) + "\n" + '{"step": 2, "train/l')
    assert read_rows(path) == [{"step": 1}]


def _files(config, record) -> list[Path]:
    folder = Study.of(config).run_folder(record.run_id)
    return [p for p in folder.rglob("*") if p.is_file() and p.name != ".lock"]
