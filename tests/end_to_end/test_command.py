"""The real command in real processes, as a user runs it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.conftest import SMALL

ENVIRONMENT = {**os.environ, "CI": "true", "COLUMNS": "100"}


def headcount(*arguments: str, cwd: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "headcount.cli", *arguments],
        cwd=cwd, env={**ENVIRONMENT, "TMPDIR": str(cwd.parent)}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip


def records(folder: Path) -> list[dict]:
    return [json.loads(p.read_text()) for p in sorted(folder.glob("runs/*/record.json"))]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A small study with W&B offline, in the folder where it was run."""
    cwd = tmp_path_factory.mktemp("study")
    small = [o for o in SMALL if not o.startswith("logger")]
    arguments = (
        "train", "-m", *small, "study=s", "seed=0,1", "model.n_heads=1,2,3,4",
    )  # fmt: skip
    done = headcount(*arguments, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return cwd, arguments, done


def test_a_study_ends_complete_with_table_and_report(study):
    cwd, _, done = study
    folder = cwd / "results" / "s"
    found = records(folder)
    assert [r["status"] for r in found] == ["completed"] * 6
    assert {r["layout"]["n_heads"] for r in found} == {1, 2, 4}
    assert done.stdout.count("skipped: ") == 2  # 3 heads, two seeds
    assert "model.n_heads=3 does not divide model.d_model=16" in done.stdout
    assert "mha h4" in done.stdout
    assert "report: results/s/report/index.html" in done.stdout
    assert (folder / "report" / "index.html").stat().st_size > 10_000
    assert (folder / "report" / "table.csv").exists()
    assert list((folder / "report" / "figures").glob("*.png"))
    assert len(list((folder / "costs").glob("*.json"))) == 3  # one a layout, whatever the seeds


def test_a_run_folder_is_complete_and_says_what_ran(study):
    cwd, _, _ = study
    record = records(cwd / "results" / "s")[0]
    folder = cwd / "results" / "s" / "runs" / record["run_id"]
    for name in ("record.json", "metrics.jsonl", "config.yaml", "run.log", "checkpoints/best.ckpt",
                 "checkpoints/last.ckpt"):  # fmt: skip
        assert (folder / name).stat().st_size > 0
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in rows if "train/loss" in r] == list(range(1, 21))
    assert record["cost"]["kv_cache"]["bytes_per_token"] == 2 * 1 * 16 * 4
    assert record["code"]["source_hash"]


def test_the_same_command_again_trains_nothing(study):
    cwd, arguments, _ = study
    folder = cwd / "results" / "s"
    before = {p: p.stat().st_mtime_ns for p in folder.glob("runs/*/*")}
    costs = {p: p.stat().st_mtime_ns for p in folder.glob("costs/*.json")}
    again = headcount(*arguments, cwd=cwd)
    assert again.returncode == 0
    assert "6 complete, 0 to run" in again.stdout
    assert {p: p.stat().st_mtime_ns for p in folder.glob("runs/*/*")} == before
    assert {p: p.stat().st_mtime_ns for p in folder.glob("costs/*.json")} == costs


def test_status_and_report_read_the_study(study):
    cwd, _, _ = study
    told = headcount("status", "s", cwd=cwd)
    assert "6 completed; 3 cost records" in told.stdout
    assert headcount("report", "results/s", cwd=cwd).returncode == 0
    assert headcount("report", "nope", cwd=cwd).returncode == 2


REFUSED = {
    "model.d_model=100 model.n_heads=8": "model.n_heads=8 does not divide model.d_model=100",
    "model.n_head=4": "model.n_head=4: unknown key; did you mean model.n_heads?",
    "++model.n_head=4": "model.n_head=4: unknown key; did you mean model.n_heads?",
    "attention=gqa model.n_kv_heads=3 model.n_heads=8": "nearest valid: 2 or 4",
    "task=nope": "task=nope: no such choice; valid: endpoint_selection",
    "model.n_heads=0": "model.n_heads=0: must be at least 1",
    "model.n_heads=64": "model.position=rope needs an even d_head",
    "hydra.typo=1": "hydra.typo=1: unknown key",
    "optim.warmup_steps=500": "optim.warmup_steps=500 leaves no step to train",
    "-m model.n_heads=3,5": "model.n_heads=3 does not divide",
    "-m seed=0,1 seed=1": "seed: given twice",
}


@pytest.mark.parametrize("request_", REFUSED)
def test_a_wrong_request_is_one_line_and_leaves_nothing(tmp_path, request_):
    done = headcount("train", *request_.split(), cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("headcount: error: ")
    assert REFUSED[request_] in line
    assert list(tmp_path.iterdir()) == []


def test_account_counts_the_seed_documents_weights(tmp_path):
    """1,048,576 projection weights a layer at d_model 512, whatever the number of heads."""
    for n_heads in (1, 8):
        done = headcount(
            "account", "model.d_model=512", f"model.n_heads={n_heads}", "--json", cwd=tmp_path
        )
        assert json.loads(done.stdout)["compute/n_params_attention_per_layer"] == 1_048_576


def test_help_explains_itself(tmp_path):
    assert "headcount train -m experiment=head_count" in headcount(cwd=tmp_path).stdout
    assert "Examples" in headcount("train", "--help", cwd=tmp_path).stdout


KILLED = (
    "train", "-m", *SMALL, "study=k", "seed=0,1,2,3", "trainer.max_steps=400", "model.dropout=0.1",
    "hydra.launcher.n_workers=1", "hydra.sweeper.waves=[training]",
)  # fmt: skip


def test_killed_in_the_second_of_four_and_run_again(tmp_path):
    """kill -9 of the whole program: nothing lives on, and the same command finishes bit for bit."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    assert headcount(*KILLED, cwd=whole).returncode == 0

    process = subprocess.Popen(
        [sys.executable, "-m", "headcount.cli", *KILLED],
        cwd=killed, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    folder = killed / "results" / "k"
    _wait_for(lambda: _checkpointed_second(folder))
    process.send_signal(signal.SIGKILL)
    process.wait()
    first = next(r for r in records(folder) if r["status"] == "completed")
    second = next(r for r in records(folder) if r["status"] == "running")
    _wait_for(lambda: not _alive(killed))
    untouched = _files(folder / "runs" / first["run_id"])

    again = headcount(*KILLED, cwd=killed)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "1 complete, 3 to run" in again.stdout
    assert _files(folder / "runs" / first["run_id"]) == untouched
    resumed = next(r for r in records(folder) if r["run_id"] == second["run_id"])
    assert resumed["training"]["resumed_from"][0] > 0
    assert [_result(r) for r in records(folder)] == [
        _result(r) for r in records(whole / "results" / "k")
    ]


def test_ctrl_c_stops_the_sweep_and_the_same_command_goes_on(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "headcount.cli", *KILLED],
        cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    folder = tmp_path / "results" / "k"
    _wait_for(lambda: any(r["training"]["steps"] > 0 for r in records(folder)))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert "the same command goes on" in out
    assert "Traceback" not in err
    (stopped,) = [r for r in records(folder) if r["status"] != "completed"]
    assert stopped["status"] == "interrupted"
    assert headcount(*KILLED, cwd=tmp_path).returncode == 0


def _checkpointed_second(folder: Path) -> bool:
    found = records(folder)
    running = [r for r in found if r["status"] == "running" and r["training"]["steps"] > 0]
    return bool(running) and any(r["status"] == "completed" for r in found)


def _result(record: dict) -> tuple:
    return record["run_id"], record["quality"], record["training"]["steps"]


def _files(folder: Path) -> dict:
    return {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}


def _alive(cwd: Path) -> bool:
    """Whether any process still works in the folder."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").resolve() == cwd.resolve():
                return True
        except OSError:
            continue
    return False


def _wait_for(condition, seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
