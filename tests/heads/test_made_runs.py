"""`headcount prune` and `headcount uptrain`: what they leave is an ordinary run of the same study."""

import json
import shutil

import pytest
import torch

from headcount.analysis import evidence
from headcount.analysis.arms import grouping
from headcount.config import Config
from headcount.errors import HeadcountError, RequestError
from headcount.heads.ablation import Ablator
from headcount.heads.commands import prune_run, uptrain_run
from headcount.heads.order import by_importance, fewest, greedy, kept_heads
from headcount.heads.record import Change, Pruning, Removal
from headcount.heads.sample import sample
from headcount.heads.source import Source
from headcount.heads.watching import watching_outputs
from headcount.study.replay import replay
from headcount.study.run import load_model
from headcount.study.store import Study, read_record
from tests.end_to_end.test_command import headcount
from tests.heads.conftest import train


@pytest.fixture
def run(request, mha, gqa, tmp_path):
    """A study of its own with one trained run."""
    source = {"mha": mha, "gqa": gqa}[getattr(request, "param", "mha")]
    shutil.copytree(source.parents[1], tmp_path / "s")
    return tmp_path / "s" / "runs" / source.name


@pytest.fixture
def unmeasured(monkeypatch):
    """Costs are not what the test is about, and take seconds."""

    def refuse(*_):
        raise HeadcountError("not measured in this test")

    monkeypatch.setattr("headcount.heads.commands.cost_wave", refuse)


def made(run):
    """The record and folder of what was made of the run."""
    (folder,) = (f for f in run.parent.iterdir() if f != run)
    return read_record(folder / "record.json"), folder


def model_of(folder):
    record = read_record(folder / "record.json")
    return load_model(Config.model_validate(record.config), folder / "checkpoints" / "best.ckpt")


@pytest.mark.parametrize("run", ["mha", "gqa"], indirect=True)
def test_cutting_heads_out_leaves_a_run_that_loads_and_computes_the_ablated_model(run, capsys):
    assert prune_run(run, ["heads=0.0,0.1,1.2"]) == 0
    record, folder = made(run)
    before = read_record(run / "record.json")
    whole, pruned = model_of(run), model_of(folder)  # saved and loaded by the usual means
    tokens = torch.randint(8, (3, 12), generator=torch.Generator().manual_seed(0))
    gone = {0: [0, 1], 1: [2]}

    def zero(layer, outputs):
        outputs = outputs.clone()
        outputs[:, :, gone[layer]] = 0
        return outputs

    with torch.no_grad():
        with watching_outputs(whole, zero):
            expected = whole(tokens)
        assert (pruned(tokens) - expected).abs().max() < 1e-5
    # 16 wide, 4 heads of 4: a query head is 2·16·4 weights, and so is a KV head. In GQA heads 0 and 1
    # of layer 0 are all that read its first KV head; layer 1 loses none.
    kv_gone = {"mha h4": 3, "gqa h4/kv2": 1}[before.layout.label]
    assert record.cost is not None and before.cost is None
    cost = record.cost
    assert whole.shape.n_params - cost.compute.n_params == (3 + kv_gone) * 2 * 16 * 4
    assert whole.shape.kv_bytes_per_token("fp32") - cost.kv_cache.bytes_per_token == (
        kv_gone * 2 * 4 * 4
    )
    assert record.layout.label == f"{before.layout.label} 5 of 8 heads, pruned"
    assert record.layout.heads == {"mha h4": [[0, 1], [0, 1, 2]], "gqa h4/kv2": [[0, 0], [0, 0, 1]]}[
        before.layout.label
    ]  # fmt: skip
    assert record.training.tokens == before.training.tokens
    assert record.quality.test_loss is not None and record.quality.slices
    out = capsys.readouterr().out
    assert f"tokens: {before.training.tokens:,} → {before.training.tokens:,} in all" in out
    assert "KV cache per token: " in out and "decode: " in out
    assert "pruned" in (run.parents[1] / "report" / "index.html").read_text()


def test_the_same_request_again_changes_nothing_and_the_run_replays(run, unmeasured):
    assert prune_run(run, ["heads=0.0", "alpha=0.5"]) == 0
    record, folder = made(run)
    assert record.training.steps == 40 + 20
    assert record.training.tokens == 60 * 16 * 12
    assert record.layout.origin == "pruned + 50%"
    stamp = (folder / "record.json").stat().st_mtime_ns
    assert prune_run(run, ["heads=0.0", "alpha=0.5"]) == 0
    assert (folder / "record.json").stat().st_mtime_ns == stamp
    assert replay(folder) == 0
    # It goes on where the run ended: its rows count its own steps and all tokens.
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert (rows[0]["step"], rows[0]["tokens"]) == (1, 41 * 16 * 12)


def test_what_is_left_can_be_cut_and_looked_into_again(run, unmeasured):
    assert prune_run(run, ["heads=0.0,0.1,0.2,0.3"]) == 0  # a layer without heads
    _, folder = made(run)
    assert headcount("inspect", str(folder), "--sequences", "4", cwd=run).returncode == 0
    seen = json.loads((folder / "heads" / "inspection.json").read_text())
    assert seen["heads"] == [0, 4] and seen["layers"][0]["effective_heads"] == 0
    assert prune_run(folder, ["heads=1.3"]) == 0
    labels = {read_record(p).layout.label for p in run.parent.glob("*/record.json")}
    assert labels == {"mha h4", "mha h4 4 of 8 heads, pruned", "mha h4 3 of 8 heads, pruned"}


def test_keeping_by_importance_cuts_out_the_least_important(run, unmeasured):
    source = Source.of(run)
    model, task = source.model(), source.task()
    batches = sample(task, "val", 64)
    order = by_importance(model, task, batches)
    assert prune_run(run, ["keep=6"]) == 0
    record, _ = made(run)
    assert record.config["origin"]["kept"] == kept_heads(model, order[:2])
    curves = Pruning.model_validate_json((run / "heads" / "pruning.json").read_bytes())
    assert [(r.layer, r.head) for r in curves.orders["importance"]] == order[:-1]
    assert [r.kept for r in curves.orders["importance"]] == [7, 6, 5, 4, 3, 2, 1]
    assert (run / "heads" / "pruning.html").exists() and (run / "heads" / "pruning.png").exists()


def test_greedy_takes_at_each_step_what_costs_least():
    """Against trying every head by hand, on a model small enough."""
    from headcount.task_config import Induction
    from headcount.tasks.induction import InductionTask
    from tests.heads.test_ablation import model_of as random_model

    task = InductionTask(
        Induction(
            name="induction", batch_size=4, seq_len=16, eval_batch_size=8, eval_sequences=8,
            vocab_size=40,
        )
    )  # fmt: skip
    ablator = Ablator(random_model("mha"), task, sample(task, "val", 8))
    found = greedy(ablator, lambda done, total: None)
    gone = []
    for removal in found:
        left = [(layer, h) for layer in range(2) for h in range(4) if (layer, h) not in gone]
        losses = {head: ablator.without([*gone, head]).loss for head in left}
        assert (removal.layer, removal.head) == min(losses, key=losses.__getitem__)
        assert removal.change.loss == min(losses.values())
        gone.append((removal.layer, removal.head))
    assert len(gone) == 7


def test_as_many_go_as_stay_below_the_margin_by_the_upper_end():
    def at(*highs):
        return [
            Removal(layer=0, head=i, kept=9 - i, change=Change(loss=h - 0.1, low=0.0, high=h))
            for i, h in enumerate(highs)
        ]

    assert fewest(at(0.001, 0.009, 0.02, 0.001), 0.01) == 2
    assert fewest(at(0.02), 0.01) == 0


@pytest.mark.parametrize("alpha", [0, 0.25])
def test_fewer_kv_heads_are_a_run_that_goes_on_with_fresh_batches(run, alpha):
    assert uptrain_run(run, ["model.n_kv_heads=2", f"alpha={alpha}"]) == 0
    record, folder = made(run)
    assert record.layout.label == "gqa h4/kv2, " + ("uptrained 25%" if alpha else "converted")
    assert record.training.steps == 40 + 40 * alpha == record.config["trainer"]["max_steps"]
    assert record.training.tokens == record.training.steps * 16 * 12
    assert record.quality.val_loss is not None and record.quality.test_loss is not None
    assert record.cost is not None and record.cost.layout.label == "gqa h4/kv2"
    model = model_of(folder)
    if not alpha:
        k = model_of(run).blocks[0].attention.qkv.weight[16:32].view(2, 2, 4, 16)
        torch.testing.assert_close(
            model.blocks[0].attention.qkv.weight[16:24], k.mean(1).flatten(0, 1)
        )


def test_the_study_tells_what_is_from_scratch_converted_uptrained_and_pruned(run):
    train(run.parents[2], "model.n_heads=4", "model.n_kv_heads=2")
    for how in ("mean", "random"):
        uptrain_run(run, ["model.n_kv_heads=2", "alpha=0", f"how={how}"])
    uptrain_run(run, ["model.n_kv_heads=2"])
    prune_run(run, ["heads=0.0"])
    found = evidence.load(Study(run.parents[1]))
    assert len(found.conditions) == 1
    assert {a.label for a in found.arms} == {
        "mha h4", "gqa h4/kv2", "gqa h4/kv2, converted", "gqa h4/kv2, converted (random)",
        "gqa h4/kv2, uptrained 5%", "mha h4 7 of 8 heads, pruned",
    }  # fmt: skip
    lines = {grouping(a.layout)[1] for a in found.arms}
    assert {"MHA", "Pruned", "Converted", "Uptrained"} < lines
    by_label = {a.label: a for a in found.arms}
    # A cost knows of no weights: converted and uptrained models share one.
    shared = by_label["gqa h4/kv2, converted"].cost
    assert shared is not None and by_label["gqa h4/kv2, uptrained 5%"].cost == shared
    assert any("unequal budgets" in w and "uptrained" in w for w in found.warnings)


def test_an_equal_total_of_tokens_is_a_condition_of_its_own(run, unmeasured):
    """Uptrained for 2 steps after 40, beside the layout trained from scratch for 42 and for 40."""
    results = run.parents[2]
    train(results, "model.n_heads=4", "model.n_kv_heads=2")
    train(results, "model.n_heads=4", "model.n_kv_heads=2", "trainer.max_steps=42")
    uptrain_run(run, ["model.n_kv_heads=2"])
    found = evidence.load(Study(run.parents[1]))
    assert {a.label for a in found.arms_of("max_steps 42")} == {
        "gqa h4/kv2", "gqa h4/kv2, uptrained 5%",
    }  # fmt: skip
    assert {a.label for a in found.arms_of("max_steps 40")} == {"mha h4", "gqa h4/kv2"}


def test_a_wrong_request_writes_nothing(run):
    before = sorted(run.parents[1].rglob("*"))
    for act, words, line in (
        (
            prune_run,
            ["heads=0.9"],
            r"heads=0.9: 0.9 is no head of the run; valid: layer.head from 0",
        ),
        (prune_run, [], "nothing to cut out"),
        (prune_run, ["keep=8"], "keep=8: valid: 1 to 7"),
        (prune_run, ["by=importence"], r"did you mean importance\?"),
        (prune_run, ["heads=0.1", "keep=2"], "chosen already"),
        (
            prune_run,
            ["heads=" + ",".join(f"{i}.{h}" for i in (0, 1) for h in range(4))],
            "all heads",
        ),
        (prune_run, ["keep=2", "keep=3"], "given twice"),
        (uptrain_run, ["model.n_kv_heads=3"], "valid: 1, 2"),
        (uptrain_run, [], "model.n_kv_heads is missing"),
        (uptrain_run, ["model.n_kv_heads=2", "alpha=-1"], "alpha=-1: valid: a share"),
        (uptrain_run, ["n_kv_heads=2"], r"did you mean model.n_kv_heads\?"),
    ):
        with pytest.raises(RequestError, match=line):
            act(run, words)
    assert sorted(run.parents[1].rglob("*")) == before


def test_the_command_line_refuses_in_one_line(mha, tmp_path):
    for words, line in (
        (["prune", str(mha), "keep=0"], "keep=0: valid: 1 to 7"),
        (
            ["uptrain", str(mha), "model.n_kv_heads=2", "how=sum"],
            "how=sum: valid: mean, first, random",
        ),
    ):
        done = headcount(*words, cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1 and line in done.stderr, done.stderr
    assert not list(tmp_path.iterdir())
