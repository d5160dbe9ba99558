"""Schedule, accumulation, evaluation, dropout, divergence: each against an independent value."""

import math

import pytest
import torch

from headcount.hydra_app import compose
from headcount.model import Transformer
from headcount.study.run import execute, load_model
from headcount.study.store import Study
from headcount.tasks import Batch, build_task
from headcount.tasks.base import IGNORE
from headcount.training.evaluation import evaluate
from headcount.training.journal import read_rows
from headcount.training.module import HeadcountModule, Part


def rows_of(config, record):
    return read_rows(Study.of(config).run_folder(record.run_id) / "metrics.jsonl")


@pytest.mark.parametrize("accumulate", [1, 4])
def test_the_schedule_is_what_was_applied_and_logged(small, accumulate):
    config = small(f"trainer.accumulate_grad_batches={accumulate}", "optim.lr=0.01")
    rows = [r for r in rows_of(config, execute(config)) if "lr" in r]
    assert [r["step"] for r in rows] == list(range(1, 21))

    def expected(step):  # 4 steps of warm-up, then a cosine over 16 to a tenth
        if step <= 4:
            return 0.01 * step / 4
        return 0.01 * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (step - 5) / 16)))

    assert [r["lr"] for r in rows] == pytest.approx([expected(s) for s in range(1, 21)])


def test_the_schedule_moves_the_weights(small):
    """The first update has the size of lr/warmup: AdamW's first step is lr times the sign."""
    config = small("trainer.max_steps=1", "optim.warmup_steps=0", "optim.weight_decay=0")
    before = Transformer(config.shape, seed=config.seed).head.weight
    record = execute(config)
    last = Study.of(config).run_folder(record.run_id) / "checkpoints/last.ckpt"
    moved = (load_model(config, last).head.weight - before).abs().max().item()
    assert moved == pytest.approx(config.optim.lr, rel=1e-3)


def test_accumulation_changes_neither_losses_nor_gradients(small):
    losses = {}
    for parts in (1, 4):
        config = small(f"trainer.accumulate_grad_batches={parts}", "trainer.max_steps=5")
        record = execute(config)
        assert record.training.tokens == 5 * 4 * 16
        losses[parts] = [r["train/loss"] for r in rows_of(config, record) if "train/loss" in r]
    assert losses[1] == pytest.approx(losses[4], abs=1e-5)


@pytest.mark.parametrize(
    ("precision", "parts"), [("32-true", 1), ("32-true", 2), ("bf16-mixed", 1)]
)
def test_a_run_is_what_a_bare_loop_does(small, precision, parts):
    """By plain PyTorch: AdamW on clipped gradients of the mean loss, linear warm-up; of mixed
    precision the forward alone under autocast."""
    config = small(
        "trainer.max_steps=5", f"trainer.accumulate_grad_batches={parts}", "optim.grad_clip=0.05",
        "optim.warmup_steps=4", "optim.weight_decay=0.1", "optim.lr=0.01",
        f"trainer.precision={precision}",
    )  # fmt: skip
    model, task, optim = (
        Transformer(config.shape, seed=config.seed),
        build_task(config),
        config.optim,
    )
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, betas=(optim.beta1, optim.beta2), fused=False)
    for step in range(5):
        batch = task.train_batch(config.seed, step)
        adamw.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, precision == "bf16-mixed"):
            logits = model(batch.inputs).flatten(0, 1)
            loss = torch.nn.functional.cross_entropy(logits, batch.targets.flatten())
        loss.backward()
        norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
        assert norm > 0.05
        for p in model.parameters():
            p.grad *= 0.05 / norm
        for group in adamw.param_groups:
            group["lr"] = optim.lr * min(1, (step + 1) / 4)
        adamw.step()
    record = execute(config)
    last = load_model(config, Study.of(config).run_folder(record.run_id) / "checkpoints/last.ckpt")
    for (name, ours), theirs in zip(last.named_parameters(), model.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=2e-5), name


def test_ragged_parts_accumulate_to_the_full_batch_gradient(small):
    config = small("trainer.accumulate_grad_batches=4")
    task = build_task(config)
    batch = task.train_batch(0, 0)
    targets = batch.targets.clone()
    for row, kept in enumerate((16, 3, 9, 1)):
        targets[row, kept:] = IGNORE
    full = Batch(batch.inputs, targets)

    def gradient(parts):
        module = HeadcountModule(config, task)
        for part in parts:
            module.loss(Part(part, full.n_scored, False)).backward()
        return torch.cat([p.grad.flatten() for p in module.parameters()])

    chunks = [Batch(*p) for p in zip(full.inputs.chunk(4), targets.chunk(4), strict=True)]
    assert torch.allclose(gradient(chunks), gradient([full]), atol=1e-5)


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_evaluation_does_not_depend_on_its_batch_size(small, batch_size):
    config = small(f"task.eval_batch_size={batch_size}", "task.eval_tokens=1001", "task.seq_len=64")
    model, task = Transformer(config.shape, seed=3), build_task(config)
    scored = evaluate(model, task, "val")

    nll, n = 0.0, 0  # one sequence at a time, in float64
    for batch in task.eval_batches("val"):
        for row in range(len(batch.inputs)):
            one = Batch(batch.inputs[row : row + 1], batch.targets[row : row + 1])
            nll += task.losses(model(one.inputs), one).double().sum().item()
            n += one.n_scored
    assert n == 1001
    assert math.exp(scored.loss) == pytest.approx(math.exp(nll / n), abs=1e-4)
    weighted = sum(s.loss * s.count for k, s in scored.slices.items() if k.startswith("position"))
    assert weighted / 1001 == pytest.approx(scored.loss, abs=1e-6)


def test_evaluation_is_without_dropout_and_leaves_no_trace(small):
    config = small("model.dropout=0.5")
    model, task = Transformer(config.shape, 0.5).train(), build_task(config)
    state = torch.random.get_rng_state()
    assert evaluate(model, task, "val") == evaluate(model, task, "val")
    assert model.training
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_last_validation_is_of_the_last_step(small):
    config = small("trainer.max_steps=13")
    record = execute(config)
    assert [r["step"] for r in rows_of(config, record) if "val/loss" in r] == [5, 10, 13]
    folder = Study.of(config).run_folder(record.run_id)
    last = load_model(config, folder / "checkpoints/last.ckpt")
    scored = evaluate(last, build_task(config), "val").loss
    assert record.quality.val_loss_last == pytest.approx(scored, abs=1e-6)
    best = load_model(config, folder / "checkpoints/best.ckpt")
    assert record.quality.val_loss == pytest.approx(
        evaluate(best, build_task(config), "val").loss, abs=1e-6
    )


def test_a_diverging_run_says_so_and_goes_no_further(small):
    config = small("optim.lr=1e6", "optim.warmup_steps=0", "trainer.max_steps=200")
    record = execute(config)
    assert record.status == "diverged"
    assert record.training.steps < 50
    assert "train/loss=" in record.error.message
    assert record.quality.test_loss is None


def test_layouts_of_one_seed_start_from_the_same_matrices(small):
    models = {
        key: Transformer(small(*key.split()).shape, seed=5).state_dict()
        for key in ("model.n_heads=1", "model.n_heads=4", "attention=mqa model.n_heads=4")
    }
    one, four, mqa = models.values()
    assert all(torch.equal(one[name], four[name]) for name in one)
    queries = slice(0, 16)
    name = "blocks.0.attention.qkv.weight"
    assert torch.equal(four[name][queries], mqa[name][queries])
    assert torch.equal(four["blocks.0.mlp.up.weight"], mqa["blocks.0.mlp.up.weight"])


def test_a_model_learns_more_than_byte_frequencies(small):
    """The unigram entropy of the test text bounds what ignoring the context can reach."""
    config = compose(
        ["logger=none", "trainer.max_steps=120", "study=learn", *_paths(small), "task.seq_len=64"]
    )
    record = execute(config)
    text = build_task(config).splits["test"].long()
    p = torch.bincount(text, minlength=256).double() / len(text)
    entropy = -(p[p > 0] * p[p > 0].log()).sum().item()
    assert record.quality.test_loss < entropy - 0.3
    assert record.quality.test_accuracy is None


def _paths(small) -> list[str]:
    return [f"paths.results={small().paths.results}"]


@pytest.mark.slow
def test_a_compiled_run_is_the_same_run_and_its_weights_load_anywhere(small):
    eager, compiled = execute(small()), small("trainer.compile=true", "study=compiled")
    record = execute(compiled)
    assert record.run_id == eager.run_id
    assert record.quality.test_loss == pytest.approx(eager.quality.test_loss, rel=1e-4)
    best = Study.of(compiled).run_folder(record.run_id) / "checkpoints" / "best.ckpt"
    model = load_model(small(), best)  # without compiling
    loss = evaluate(model, build_task(compiled), "test").loss
    assert loss == pytest.approx(record.quality.test_loss, rel=1e-5)
