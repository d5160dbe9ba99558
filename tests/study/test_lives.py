"""The life of a study's runs: failures told and tried again, shards, sharing, memory, the disk."""

import gc
import itertools
import json
import os
import signal
import threading

import psutil
import pytest

from headcount.analysis import report
from headcount.config import Orders
from headcount.errors import HeadcountError
from headcount.model import Transformer
from headcount.study import claims
from headcount.study import conduct as conduct_module
from headcount.study.conduct import conduct
from headcount.study.plan import make_plan
from headcount.study.run import execute, run_in_process
from headcount.study.store import Study
from headcount.study.workers import run_in_processes

WAVES = ["training"]


def orders(**changes) -> Orders:
    return Orders(
        **{"plan_only": False, "shard": None, "retries": 0, "fail_fast": False, **changes}
    )


@pytest.fixture(autouse=True)
def _no_report(monkeypatch):
    """What comes out is tested elsewhere; pictures take seconds."""
    monkeypatch.setattr(report, "build", lambda study: study.report / "index.html")


@pytest.fixture
def plan_of(small):
    return lambda *points: make_plan(points, lambda p: small(*p), WAVES)


SIX = (
    ("seed=0",),
    ("seed=1", "optim.lr=1e8", "trainer.max_steps=60"),  # diverges
    ("seed=2",),
    ("seed=3", "logger=tensorboard", "model.d_model=32"),  # raises: see below
    ("seed=4", "model.d_ff=4000000000"),  # 16 TB of weights
    ("seed=5",),
)


def test_a_diverging_a_raising_and_an_oversized_run_cost_no_other(plan_of, monkeypatch, capsys):
    import headcount.study.run as run_module

    def broken(config, folder, record):
        if config.logger.name == "tensorboard":
            raise RuntimeError("no such disk\nin this house")

    monkeypatch.setattr(run_module, "open_logger", broken)
    plan = plan_of(*SIX)
    assert conduct(plan, run_in_process, WAVES, orders()) == 1
    records = {r.config["seed"]: r for r in plan.study.records()}
    assert {seed: r.status for seed, r in records.items()} == {
        0: "completed", 1: "diverged", 2: "completed", 3: "failed", 4: "failed", 5: "completed",
    }  # fmt: skip
    assert records[3].error.message == "no such disk"
    assert "allocate" in records[4].error.message
    out, err = capsys.readouterr()
    for seed in (1, 3, 4):
        reason = records[seed].error.message
        assert reason in err, "told at once"
        assert f"({records[seed].run_id}): {reason}" in out, "told at the end"
        log = (plan.study.run_folder(records[seed].run_id) / "run.log").read_text()
        assert reason in log and "Traceback" in log
    assert "Traceback" in err

    # The next command tries just those again.
    finished = {r.run_id: r.training.finished for r in records.values()}
    monkeypatch.setattr(run_module, "open_logger", lambda *a: None)
    tried = []

    def launch(points, stop):
        tried.extend(p.config.seed for p in points)
        return run_in_process(points, stop)

    assert conduct(plan_of(*SIX), launch, WAVES, orders()) == 1
    assert sorted(tried) == [1, 3, 4]
    again = {r.config["seed"]: r for r in plan.study.records()}
    assert again[3].status == "completed"
    assert all(again[s].training.finished == finished[again[s].run_id] for s in (0, 2, 5))


def failing(monkeypatch, times: int) -> list[int]:
    """Make runs of seed 0 fail that often; returns the seeds as they are attempted."""
    import headcount.study.run as run_module

    attempts: list[int] = []
    original = run_module._train_and_score

    def attempt(config, *rest):
        attempts.append(config.seed)
        if config.seed == 0 and attempts.count(0) <= times:
            raise RuntimeError("bad luck")
        original(config, *rest)

    monkeypatch.setattr(run_module, "_train_and_score", attempt)
    return attempts


def test_a_failed_run_is_tried_again_as_often_as_asked(plan_of, monkeypatch):
    attempts = failing(monkeypatch, times=2)
    assert conduct(plan_of(("seed=0",), ("seed=1",)), run_in_process, WAVES, orders(retries=1)) == 1
    assert attempts == [0, 1, 0]
    assert conduct(plan_of(("seed=0",), ("seed=1",)), run_in_process, WAVES, orders()) == 0


def test_fail_fast_starts_no_further_run(plan_of, monkeypatch):
    attempts = failing(monkeypatch, times=9)
    from headcount.study import watch

    monkeypatch.setattr(watch, "POLL_SECONDS", 0.01)

    def slow(points, stop):
        for point in points:
            if not stop.is_set():
                run_in_process([point], threading.Event())
                stop.wait(2)
        return {}

    points = [(f"seed={s}",) for s in range(3)]
    assert conduct(plan_of(*points), slow, WAVES, orders(fail_fast=True)) == 1
    assert attempts == [0]


def test_shards_share_the_plan_and_nothing_is_run_twice(plan_of):
    points = [(f"seed={s}", f"model.n_layers={n}") for s in (0, 1) for n in (1, 2)]
    ran = []
    for shard in ("1/3", "2/3", "3/3"):

        def launch(points, stop):
            ran.append([p.run_id for p in points])
            return run_in_process(points, stop)

        plan = plan_of(*points)
        assert conduct(plan, launch, WAVES, orders(shard=shard)) == 0
    assert sorted(itertools.chain(*ran)) == sorted(p.run_id for p in plan.points)
    assert [len(part) for part in ran] == [2, 1, 1]
    assert len(plan.study.planned()) == 4


def test_a_study_waits_for_a_run_that_another_command_works_on(plan_of, small, monkeypatch):
    """… and takes it over when its holder dies, here: lets go."""
    plan = plan_of(("seed=0",), ("seed=1",))
    held, let_go = threading.Event(), threading.Event()

    def hold():
        with plan.study.claim(plan.points[0].run_id):
            held.set()
            let_go.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(10)
    rounds = []

    def launch(points, stop):
        rounds.append([p.config.seed for p in points])
        let_go.set()
        holder.join()
        return run_in_process(points, stop)

    assert conduct(plan, launch, WAVES, orders()) == 0
    assert rounds == [[1], [0]]


def test_plan_only_runs_nothing_and_writes_the_plan(small, capsys):
    points = [(f"model.n_heads={h}", f"model.n_kv_heads={k}") for h in (2, 3, 8) for k in (1, 2, 4)]
    plan = make_plan(points, lambda p: small("model.d_model=48", *p), WAVES)

    def launch(points, stop):
        raise AssertionError

    assert conduct(plan, launch, WAVES, orders(plan_only=True)) == 0
    out = capsys.readouterr().out
    assert "6 runs planned" in out
    assert out.count("skipped: ") == 3
    assert "gqa h8/kv4" in out and "7.68k tokens" in out
    document = json.loads(plan.study.plan_path.read_text())
    assert len(document["points"]) == 6 and len(document["skipped"]) == 3
    assert document["estimate"]["tokens"] == 6 * 20 * 4 * 16
    assert not plan.study.runs.exists()


def test_the_number_of_workers_changes_no_record(plan_of, small):
    def run(study, n_workers):
        points = [(f"study={study}", f"seed={s}", "model.dropout=0.1") for s in range(4)]
        plan = plan_of(*points)
        launch = lambda points, stop: run_in_processes(points, stop, n_workers)  # noqa: E731
        assert conduct(plan, launch, WAVES, orders()) == 0
        return {
            r.run_id: (r.quality, r.training.steps, r.training.tokens) for r in plan.study.records()
        }

    assert run("one", 1) == run("four", 4)


def test_memory_does_not_grow_from_run_to_run(small):
    process, resident = psutil.Process(), []
    for seed in range(10):
        execute(small(f"seed={seed}", "model.d_model=64", "model.n_layers=4"))
        resident.append(process.memory_info().rss)
    assert resident[-1] - resident[2] < 20 * 2**20, [r >> 20 for r in resident]
    gc.collect()
    assert not [o for o in gc.get_objects() if type(o) is Transformer]


def test_a_run_leaves_the_signal_handlers_as_it_found_them(small):
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    execute(small())
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before
    assert execute(small("optim.lr=1e9", "seed=1")).status == "diverged"
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_results_folder_that_cannot_be_written_is_one_line(plan_of, tmp_path):
    (tmp_path / "file").write_text("")
    plan = plan_of((f"paths.results={tmp_path}/file",))
    with pytest.raises(HeadcountError, match="Not a directory; everything written before is kept"):
        conduct(plan, run_in_process, WAVES, orders())


def test_a_full_disk_fails_the_run_and_loses_nothing(plan_of, small, monkeypatch):
    from headcount.training import progress

    plan = plan_of(("seed=0",))
    original = progress.AtomicCheckpointIO.save_checkpoint

    def full(self, checkpoint, path, storage_options=None):
        if checkpoint["global_step"] > 5:
            raise OSError(28, "No space left on device", str(path))
        original(self, checkpoint, path, storage_options)

    with monkeypatch.context() as patch:
        patch.setattr(progress.AtomicCheckpointIO, "save_checkpoint", full)
        assert conduct(plan, run_in_process, WAVES, orders()) == 1
    (record,) = plan.study.records()
    assert record.error.message.startswith("[Errno 28] No space left on device")
    assert conduct(plan, run_in_process, WAVES, orders()) == 0
    (record,) = plan.study.records()
    assert record.status == "completed"


def test_what_a_kill_left_half_written_is_cleared(small):
    config = small()
    study = Study.of(config)
    torn = study.run_folder(
        execute(small("seed=1")).run_id
    )  # some other run's folder stays as it is
    (torn / ".record.json.1.tmp").write_text("{")
    from headcount.study.identity import run_id

    folder = study.run_folder(run_id(config))
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / ".last.ckpt.7.tmp").write_text("half")
    execute(config)
    assert not list(folder.rglob("*.tmp")) and list(torn.rglob(".*.tmp"))


def test_a_torn_checkpoint_begins_the_run_anew(small):
    config = small()
    whole = execute(config)
    study = Study.of(config)
    folder = study.run_folder(whole.run_id)
    (folder / "record.json").unlink()
    checkpoint = folder / "checkpoints" / "last.ckpt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    again = execute(config)
    assert again.status == "completed"
    assert again.quality == whole.quality and not again.training.resumed_from
    assert "cannot be read" in (folder / "run.log").read_text()


def test_a_torn_plan_is_named(small):
    config = small()
    execute(config)
    study = Study.of(config)
    study.plan_path.write_text("x")
    with pytest.raises(HeadcountError, match=r"plan\.json: not a plan"):
        study.planned()


def test_a_worker_that_was_overtaken_writes_nothing_more(small, monkeypatch):
    config = small()
    monkeypatch.setattr(claims.Claim, "holds", lambda self: False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims, "_take", lambda folder: _claim_in(folder))
        record = execute(config)
    assert record.status == "interrupted"
    assert "another process took the run over" in record.error.message
    assert Study.of(config).record(record.run_id).status == "running"  # as the other one's


def _claim_in(folder):
    folder.mkdir(parents=True, exist_ok=True)
    return claims.Claim(folder / ".claim.1", claims.Owner.this_process())


def test_termination_is_an_interrupt_for_the_conductor(plan_of):
    def launch(points, stop):
        os.kill(os.getpid(), signal.SIGTERM)
        stop.wait(10)
        return {}

    assert conduct(plan_of(("seed=0",)), launch, WAVES, orders()) == conduct_module.EXIT_INTERRUPTED
