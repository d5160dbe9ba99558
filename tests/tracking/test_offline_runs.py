"""An offline run: what its file holds, whatever way the run ended."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headcount.study import run as run_module
from headcount.study.run import execute
from headcount.study.store import Study
from headcount.tracking import content, keys
from headcount.training import progress as progress_module
from headcount.training.evaluation import Evaluation
from headcount.training.journal import read_rows
from tests.tracking.conftest import give_cost, run_folder
from tests.tracking.datastore import read

PINNED = {
    "layout/kind",
    "layout/n_heads",
    "layout/n_kv_heads",
    "layout/d_head",
    "quality/val_loss",
    "quality/val_loss_last",
    "quality/test_loss",
    "latency/prefill_ms_p50",
    "latency/decode_ms_per_token_p50",
    "latency/decode_ms_per_token_p90",
    "memory/weights_bytes",
    "memory/decode_peak_bytes",
    "memory/train_peak_bytes",
    "kv_cache/bytes_per_token",
    "kv_cache/allocated_bytes",
    "compute/n_params",
    "compute/n_params_attention",
    "compute/train_flops_per_token",
    "training/tokens",
    "training/steps",
    "training/tokens_per_s",
}


@pytest.fixture
def at_step(monkeypatch):
    """Make the run do something right after a step's hooks, once."""

    def install(step: int, action) -> None:
        original = progress_module.RunProgress.on_train_batch_end
        done = []

        def hook(self, trainer, *args):
            original(self, trainer, *args)
            if trainer.global_step == step and not done:
                done.append(step)
                action()

        monkeypatch.setattr(progress_module.RunProgress, "on_train_batch_end", hook)

    return install


def test_everything_stands_under_its_name(logged):
    config = logged("model.n_heads=4", "model.n_kv_heads=2", "seed=3", "study=names")
    cost = give_cost(config)
    record = execute(config)
    found = read(run_folder(config, record.run_id))

    assert found.run.run_id == f"names-{record.run_id}"
    assert found.run.display_name == f"gqa h4/kv2 s3 {record.run_id}"
    assert found.run.run_group == "names"
    assert found.run.job_type == "train"
    assert list(found.run.tags) == ["moby_dick", "gqa"]
    assert found.run.project == "headcount"
    assert found.exit_code == 0

    resolved = found.config["headcount"]
    assert resolved == record.config
    model = resolved["model"]
    assert (model["n_heads"], model["n_kv_heads"], model["d_head"]) == (4, 2, 4)
    assert found.config["layout"]["n_kv_heads"] == 2

    assert set(found.summary) >= PINNED
    for key, value in record.headline().items():
        assert found.summary[key] == value, key
    assert found.summary["quality/slice/bytes_rare"] == record.quality.slices["bytes_rare"].loss
    assert found.summary["latency/decode_ms_per_token_p50"] == 1.0  # two KV heads at half each
    assert found.summary["status"] == "completed"
    # log2(1 ms) is 0, so that the objective is the loss alone.
    assert found.summary["objective/quality_latency"] == pytest.approx(record.quality.val_loss)

    table = found.summary["latency/grid"]
    assert table["_type"] == "table-file"
    [path] = run_folder(config, record.run_id).glob(
        "wandb/offline-run-*/files/media/table/**/*.json"
    )
    rows = json.loads(path.read_text())
    assert rows["columns"] == content.GRID_COLUMNS
    assert [row[:4] for row in rows["data"]] == [["prefill", 16, 1, 4.0], ["decode", 16, 1, 1.0]]
    assert len(cost.points) == 2


def test_curves_are_the_journal_over_tokens(logged):
    config = logged()
    record = execute(config)
    folder = run_folder(config, record.run_id)
    found, rows = read(folder), read_rows(folder / "metrics.jsonl")
    for key in keys.CURVES:
        assert found.series(key) == {r["step"]: r[key] for r in rows if key in r}
    assert found.series("tokens") == {step: step * 4 * 16 for step in range(1, 21)}
    assert set(found.series("val/loss")) == {5, 10, 15, 20}
    for key in keys.CURVES:
        step_metric = found.metrics[key].step_metric
        assert step_metric == "tokens"
    assert "tokens" in found.metrics


def test_a_curve_is_thinned_but_keeps_first_and_validated_steps(logged):
    config = logged("logger.every_steps=8")
    folder = run_folder(config, execute(config).run_id)
    found = read(folder)
    assert set(found.series("train/loss")) == {1, 8, 16}
    assert set(found.series("val/loss")) == {5, 10, 15, 20}
    assert len(read_rows(folder / "metrics.jsonl")) == 20 + 4


def test_best_and_last_are_told_apart(logged, monkeypatch):
    losses = iter([3.0, 1.0, 2.0, 2.5])
    monkeypatch.setattr(
        progress_module,
        "evaluate",
        lambda *args: Evaluation(next(losses), accuracy=None, bits_per_byte=None, slices={}),
    )
    config = logged()
    found = read(run_folder(config, execute(config).run_id))
    assert found.summary["quality/val_loss"] == 1.0
    assert found.summary["quality/val_loss_last"] == 2.5


def test_three_jobs_in_one_process_the_second_raising(logged, monkeypatch):
    configs = [logged(f"model.n_heads={n}", "study=three") for n in (1, 2, 4)]
    original = run_module.build_task

    def build(config):
        if config.model.n_heads == 2:
            raise RuntimeError("second job raises")
        return original(config)

    monkeypatch.setattr(run_module, "build_task", build)
    records = [execute(config) for config in configs]
    assert [r.status for r in records] == ["completed", "failed", "completed"]
    found = [read(run_folder(configs[0], r.run_id)) for r in records]
    assert len({f.run.run_id for f in found}) == 3
    assert [f.config["headcount"]["model"]["n_heads"] for f in found] == [1, 2, 4]
    assert [f.summary["layout/n_heads"] for f in found] == [1, 2, 4]
    assert [f.exit_code for f in found] == [0, 1, 0]
    assert [f.summary["status"] for f in found] == ["completed", "failed", "completed"]
    assert found[1].summary["error"] == "RuntimeError: second job raises"
    assert not found[1].history
    assert [len(f.history) for f in (found[0], found[2])] == [20, 20]


def test_a_diverged_run_says_so_and_shows_where(logged):
    config = logged("optim.lr=1e6", "optim.grad_clip=0", "optim.warmup_steps=0")
    record = execute(config)
    assert record.status == "diverged"
    found = read(run_folder(config, record.run_id))
    assert found.exit_code == 1
    assert found.summary["status"] == "diverged"
    assert found.series("train/loss")[1] == pytest.approx(record_first_loss(config, record))
    assert max(found.series("train/loss")) > 1


def record_first_loss(config, record):
    return read_rows(run_folder(config, record.run_id) / "metrics.jsonl")[0]["train/loss"]


def test_a_resumed_run_continues_its_curve_without_doubling_a_step(logged, at_step):
    config = logged()
    at_step(8, lambda: os.kill(os.getpid(), signal.SIGTERM))
    stopped = execute(config)
    folder = run_folder(config, stopped.run_id)
    first = read(folder)
    assert first.exit_code == 130
    assert first.summary["status"] == "interrupted"
    assert set(first.series("train/loss")) == set(range(1, 10))

    record = execute(config)
    assert record.training.resumed_from == [9]
    found = read(folder)  # one file: the earlier attempt's is gone
    assert found.exit_code == 0
    rows = read_rows(folder / "metrics.jsonl")
    assert found.series("train/loss") == {
        r["step"]: r["train/loss"] for r in rows if "train/loss" in r
    }
    assert set(found.series("train/loss")) == set(range(1, 21))


def test_a_killed_run_loses_nothing_once_resumed(logged, tmp_path):
    """W&B's own file lacks the tail that it had not written; the journal has it."""
    config = logged("study=killed")
    script = (
        "import os, signal, sys\n"
        "from headcount.config import Config\n"
        "from headcount.study.run import execute\n"
        "from headcount.training.progress import RunProgress\n"
        "original = RunProgress.on_train_batch_end\n"
        "def hook(self, trainer, *args):\n"
        "    original(self, trainer, *args)\n"
        "    if trainer.global_step == 7: self._save(trainer)\n"
        "    if trainer.global_step == 12: os.kill(os.getpid(), signal.SIGKILL)\n"
        "RunProgress.on_train_batch_end = hook\n"
        "execute(Config.model_validate_json(sys.argv[1]))\n"
    )
    # Not under this process's own W&B service, which would outlive it.
    own = {k: v for k, v in os.environ.items() if k != "WANDB_SERVICE"}
    command = [sys.executable, "-c", script, config.model_dump_json()]
    ended = subprocess.run(command, capture_output=True, timeout=120, env=own)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    record = execute(config)
    assert record.status == "completed"
    assert 7 in record.training.resumed_from
    assert set(read(run_folder(config, record.run_id)).series("train/loss")) == set(range(1, 21))


def test_no_step_is_out_of_order(logged, at_step):
    config = logged()
    at_step(8, lambda: os.kill(os.getpid(), signal.SIGTERM))
    execute(config)
    record = execute(config)
    folder = run_folder(config, record.run_id)
    logs = list(folder.glob("wandb/offline-run-*/logs/*.log"))
    assert len(logs) == 3
    for log in logs:
        assert "WARN" not in log.read_text()
    for log in (*logs, folder / "run.log"):
        assert "less than" not in log.read_text()
        assert "out of order" not in log.read_text()


def test_the_earlier_attempt_of_the_same_run_goes_and_nothing_else(logged):
    config = logged()
    other = Study.of(config).runs / "other" / "wandb" / "offline-run-20260101_000000-x"
    other.mkdir(parents=True)
    execute(config)
    assert other.is_dir()


@pytest.mark.parametrize("moment", ["start", "log", "finish"])
def test_trouble_with_wandb_never_costs_the_training(logged, monkeypatch, capsys, moment):
    import wandb

    def raises(*args, **kwargs):
        raise RuntimeError("W&B is ill\nwith a second line")

    if moment == "start":
        monkeypatch.setattr(wandb, "init", raises)
    else:
        monkeypatch.setattr(wandb.Run, moment, raises)
    config = logged()
    record = execute(config)
    monkeypatch.undo()
    wandb.teardown()
    assert record.status == "completed"
    assert len(read_rows(run_folder(config, record.run_id) / "metrics.jsonl")) == 24
    lines = [line for line in capsys.readouterr().err.splitlines() if "W&B" in line]
    assert len(lines) == 1
    assert "W&B is ill" in lines[0]
    assert "complete" in lines[0]


def test_checkpoints_go_along_only_when_asked(logged):
    plain, asked = logged(), logged("logger.checkpoints=true", "study=asked")
    kinds = [read(run_folder(c, execute(c).run_id)).kinds for c in (plain, asked)]
    assert "artifact" not in kinds[0]
    assert "artifact" in kinds[1]


def test_names_are_bounded_and_unique(logged):
    longest = "s" * 64
    records = [execute_without_training(logged(f"study={longest}", f"seed={s}")) for s in (0, 1)]
    for record in records:
        record.layout.label = "x" * 200
        assert len(content.wandb_id(record)) <= 128
        assert len(content.run_name(record)) <= content.NAME_LENGTH
        record.config["task"]["name"] = "t" * 200
        assert all(len(tag) <= content.TAG_LENGTH for tag in content.tags(record))
    assert len({content.run_name(r) for r in records}) == 2
    assert len({content.wandb_id(r) for r in records}) == 2


def execute_without_training(config):
    return run_module.new_record(config, Study.of(config), None)


def test_wandb_itself_can_show_the_run(logged):
    config = logged("study=shown")
    record = execute(config)
    [folder] = run_folder(config, record.run_id).glob("wandb/offline-run-*")
    shown = subprocess.run(
        ["wandb", "leet", "inspect", "--json", str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )
    assert shown.returncode == 0, shown.stderr
    assert f"shown-{record.run_id}" in shown.stdout
    assert "quality/test_loss" in shown.stdout
