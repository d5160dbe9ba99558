"""Sweeps as W&B's own client runs them: `wandb sweep` on a shipped file, then two `wandb agent`s."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

import headcount
from headcount.study.run import load_model
from headcount.study.store import Study
from headcount.training.journal import read_rows
from tests.conftest import SMALL
from tests.tracking.conftest import give_cost
from tests.tracking.loopback import ENTITY

SWEEPS = Path(__file__).parents[2] / "sweeps"

AGENT = (
    "import sys, wandb.wandb_agent\n"
    "wandb.wandb_agent.Agent.POLL_INTERVAL = 0.2\n"
    "from wandb.cli.cli import cli\n"
    "cli(['agent', sys.argv[1]])\n"
)


@pytest.fixture
def shell(tmp_path, server, monkeypatch):
    """Run commands where `headcount` is the program under test, on a small model."""
    monkeypatch.chdir(tmp_path)
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    small = " ".join(f"'{o}'" for o in SMALL if not o.startswith("logger"))
    program = bin_folder / "headcount"
    program.write_text(
        f'#!/bin/sh\nshift\nexec {sys.executable} -m headcount.cli train {small} "$@"\n'
    )
    program.chmod(0o755)
    environment = os.environ | {
        "PYTHONPATH": str(Path(headcount.__file__).parents[1]),
        "PATH": f"{bin_folder}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "WANDB_X_FILE_STREAM_TRANSMIT_INTERVAL": "0.2",
    }
    environment.pop("WANDB_SERVICE", None)

    def start(*command: str) -> subprocess.Popen:
        return subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return start


def finished(process: subprocess.Popen) -> str:
    try:
        output, _ = process.communicate(timeout=900)
    except subprocess.TimeoutExpired:
        for left in [*psutil.Process(process.pid).children(recursive=True), process]:
            left.kill()
        raise
    assert process.returncode == 0, output
    return output


@pytest.mark.slow
def test_a_shipped_sweep_with_two_agents(shell, server, small, tmp_path):
    finished(shell("wandb", "sweep", str(SWEEPS / "head_count.yaml")))
    [sweep] = server.sweeps.values()
    assert sweep.project == "headcount"
    assert len(sweep.waiting) == 15

    # Few of its points, one of them twice; and points that go wrong, each in its own way.
    sweep.waiting = [p for p in sweep.waiting if p["seed"]["value"] == 0][:2]
    server.suggest(sweep.name, {"model.n_heads": 3, "seed": 0})
    server.suggest(sweep.name, {"model.n_heads": 5, "seed": 0})
    server.suggest(sweep.name, {"model.n_heads": 6, "seed": 0})
    server.suggest(sweep.name, {"model.n_heads": 1, "seed": 7, "trainer.strategy": "nonsense"})
    server.suggest(sweep.name, {"model.n_heads": 2, "trainer.max_steps": 1_000_000})
    server.suggest(sweep.name, {"model.n_heads": 1, "seed": 0})
    server.stop_run = lambda run: (
        run.config.get("trainer.max_steps") is not None and len(run.history) > 3
    )
    layouts = [
        small(f"model.n_heads={n}", "study=head_count", "paths.results=results") for n in (1, 2)
    ]
    for config in layouts:
        give_cost(config)

    agents = [
        shell(sys.executable, "-c", AGENT, f"{ENTITY}/headcount/{sweep.name}") for _ in range(2)
    ]
    outputs = [finished(agent) for agent in agents]
    assert not sweep.waiting, outputs

    runs = dict(server.runs.items())
    assert len(runs) == 8, outputs
    assert all(run.sweep == sweep.name and run.project == "headcount" for run in runs.values())
    study = Study(tmp_path / "results" / "head_count")
    records = {r.run_id: r for r in study.records()}

    def of(*, status: str) -> list:
        return [run for run in runs.values() if run.summary.get("status") == status]

    completed = of(status="completed")
    assert sorted(r.config_value("model.n_heads") for r in completed) == [1, 1, 2]
    for run in completed:
        # The swept keys beside, the resolved configuration untouched under its own key.
        model = run.config_value("headcount")["model"]
        assert model["n_heads"] == run.config_value("model.n_heads")
        assert model["d_head"] == 16 // model["n_heads"]
        [record] = [
            r
            for r in records.values()
            if r.config["model"]["n_heads"] == model["n_heads"] and r.status == "completed"
        ]
        assert run.summary["quality/val_loss"] == record.quality.val_loss
        assert run.summary["latency/decode_ms_per_token_p50"] == 0.5 * model["n_heads"]
        rows = read_rows(study.run_folder(record.run_id) / "metrics.jsonl")
        validations = {r["step"]: r["val/loss"] for r in rows if "val/loss" in r}
        assert run.series("val/loss") == validations
        assert (run.state, run.group) == ("finished", "head_count")

    invalid = of(status="invalid")
    assert sorted(r.config_value("model.n_heads") for r in invalid) == [3, 5, 6]
    for run in invalid:
        assert run.state == "finished"
        assert f"n_heads={run.config_value('model.n_heads')}" in run.summary["error"]

    [failed] = of(status="failed")
    assert (failed.state, failed.exit_code) == ("failed", 1)
    assert "nonsense" in failed.summary["error"]

    [stopped] = of(status="interrupted")
    assert stopped.exit_code == 130
    [record] = [r for r in records.values() if r.status == "interrupted"]
    assert record.training.steps == stopped.summary["training/steps"] > 3
    checkpoint = study.run_folder(record.run_id) / "checkpoints" / "last.ckpt"
    assert torch.load(checkpoint, weights_only=True)["global_step"] == record.training.steps
    load_model(small("model.n_heads=2"), checkpoint)  # whole, and of the layout


def test_several_runs_under_one_id_are_refused(monkeypatch, capsys):
    from headcount import cli

    monkeypatch.setenv("WANDB_SWEEP_ID", "x")
    monkeypatch.setattr(sys, "argv", ["headcount", "train", "-m", "seed=0,1"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert "wandb agent" in capsys.readouterr().err
