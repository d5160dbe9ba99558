"""Synthetic studies: records with known figures, written to a real study's folder."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headcount.analysis import report
from headcount.layout import HeadLayout
from headcount.shape import ModelShape
from headcount.study.records import (
    Compute,
    Cost,
    Failure,
    KVCache,
    Layout,
    Memory,
    Point,
    Quality,
    Record,
    Slice,
    Training,
)
from headcount.study.store import Study

D_MODEL = 64
CONTEXTS = (64, 256, 1024)


def layout_of(n_heads: int, n_kv_heads: int | None = None, d_model: int = D_MODEL) -> Layout:
    head = HeadLayout.of(d_model, n_heads, n_kv_heads)
    return Layout(
        kind=head.kind,
        d_model=head.d_model,
        n_heads=head.n_heads,
        n_kv_heads=head.n_kv_heads,
        d_head=head.d_head,
        label=head.label,
    )


def shape_of(layout: Layout, n_layers: int = 2) -> ModelShape:
    head = HeadLayout(layout.d_model, layout.n_heads, layout.n_kv_heads, layout.d_head)
    return ModelShape(
        head, n_layers, 176, "swiglu", "rope", "rmsnorm", False, "tokens", 256, 256, 128
    )


def make_config(layout: Layout, seed: int, **override: Any) -> dict[str, Any]:
    """A resolved configuration; `override` takes dotted keys with `__` for the dot."""
    config: dict[str, Any] = {
        "study": "synthetic",
        "seed": seed,
        "model": {
            "attention": "mha" if layout.kind in ("single", "mha") else layout.kind,
            "d_model": layout.d_model,
            "n_layers": 2,
            "n_heads": layout.n_heads,
            "n_kv_heads": layout.n_kv_heads,
            "kv_group_size": layout.n_heads // layout.n_kv_heads,
            "d_head": layout.d_head,
            "d_ff": 176,
            "mlp": "swiglu",
            "position": "rope",
            "norm": "rmsnorm",
            "dropout": 0.0,
            "tie_embeddings": False,
            "backend": "sdpa",
        },
        "task": {"name": "moby_dick", "batch_size": 16, "seq_len": 128},
        "control": {"name": "fixed_d_model"},
        "optim": {"lr": 0.003, "weight_decay": 0.1, "warmup_steps": 50},
        "trainer": {"max_steps": 500, "precision": "32-true", "threads": 1},
    }
    for key, value in override.items():
        section, _, leaf = key.partition("__")
        config[section][leaf] = value
    return config


def make_cost(
    layout: Layout,
    *,
    decode_ms: float | None = None,
    kernel: str = "grouped matmul",
    dtype: str = "fp32",
    device: str = "CPU AMD EPYC 9R14",
    noise_floor: float | None = 0.02,
    n_layers: int = 2,
    samples: int = 30,
    measured: str = "2026-11-30T10:00:00+00:00",
    warnings: tuple[str, ...] = (),
    backend: str = "sdpa",
) -> Cost:
    shape = shape_of(layout, n_layers)
    kv = shape.kv_bytes_per_token("fp32")
    rng = np.random.default_rng(layout.n_heads * 100 + layout.n_kv_heads)
    base = decode_ms if decode_ms is not None else 0.4 + 0.1 * layout.n_kv_heads
    points = []
    for phase in ("prefill", "decode"):
        for context in CONTEXTS:
            for batch in (1, 4):
                scale = base * (1 + context / 1024) * (1 + batch / 16)
                if phase == "prefill":
                    scale *= context / 32
                times = scale * (1 + 0.05 * rng.gamma(2, 1, samples))
                points.append(
                    Point(
                        phase=phase,
                        context=context,
                        batch_size=batch,
                        samples_ms=times.tolist(),
                        p50_ms=float(np.median(times)),
                        p90_ms=float(np.quantile(times, 0.9)),
                        p99_ms=float(np.quantile(times, 0.99)),
                        kernel=kernel,
                        kv_sharing="grouped rows",
                    )
                )
    return Cost(
        schema=1,
        cost_id=f"c-{layout.label.replace(' ', '-').replace('/', '-')}-{dtype}-{len(device)}-{n_layers}-{layout.d_model}",
        layout=layout,
        shape={k: v for k, v in shape.as_dict().items() if k != "layout"},
        dtype=dtype,
        device=device,
        backend=backend,
        protocol={
            "contexts": list(CONTEXTS),
            "batch_sizes": [1, 4],
            "repeats": samples,
            "headline_context": 256,
            "headline_batch_size": 1,
            "threads": 1,
        },
        environment={"torch": "2.13.0", "load": 0.1},
        points=points,
        memory=Memory(
            weights_bytes=4 * shape.n_params,
            decode_peak_bytes=5 * shape.n_params,
            train_peak_bytes=20 * shape.n_params,
            method="allocator",
        ),
        kv_cache=KVCache(bytes_per_token=kv, allocated_bytes=1024 * kv, used_bytes=1024 * kv),
        compute=Compute(
            n_params=shape.n_params,
            n_params_attention=shape.n_params_by_part["attention"],
            train_flops_per_token=shape.train_flops_per_token(128),
        ),
        noise_floor=noise_floor,
        warnings=list(warnings),
        measured=measured,
    )


def make_record(
    layout: Layout,
    seed: int,
    loss: float | None,
    *,
    status: str = "completed",
    accuracy: float | None = None,
    cost: Cost | None = None,
    tokens: int = 1_024_000,
    source_hash: str = "abcdef0123456789",
    val_loss: float | None = None,
    slices: dict[str, float] | None = None,
    **override: Any,
) -> Record:
    config = make_config(layout, seed, **override)
    done = status == "completed"
    if val_loss is None and loss is not None:
        val_loss = loss - 0.01
    tag = "-".join(str(v) for v in override.values())
    name = layout.label.replace(" ", "-").replace("/", "-")
    return Record(
        schema=1,
        run_id=f"{name}-{layout.d_model}-{tag}-s{seed}".replace("--", "-"),
        study="synthetic",
        status=status,
        config=config,
        layout=layout,
        quality=Quality(
            val_loss=val_loss,
            val_loss_last=val_loss,
            test_loss=loss if done else None,
            test_accuracy=accuracy if done else None,
            slices={k: Slice(loss=v, count=1000) for k, v in (slices or {}).items()},
        ),
        training=Training(
            steps=tokens // 2048 if done else 100,
            tokens=tokens if done else 100 * 2048,
            seconds=12.0,
            tokens_per_s=80_000.0,
            started="2026-11-30T09:00:00+00:00",
            finished="2026-11-30T09:01:00+00:00",
        ),
        cost=cost,
        environment={"python": "3.11.2", "torch": "2.13.0", "host": "box", "cpu": "AMD EPYC 9R14"},
        code={"version": "0.1.0", "source_hash": source_hash, "data_hash": "d" * 16},
        error=None
        if status in ("completed", "running", "interrupted")
        else Failure(
            type="FloatingPointError",
            message="loss is NaN at step 100",
            traceback="Traceback (most recent call last):\n  …\nFloatingPointError: loss is NaN",
        ),
    )


# Mean test loss by (n_heads, n_kv_heads): a U over heads, like the novel's at this size.
_POSITIONS = {"0_15": 0.4, "16_63": 0.05, "64_127": -0.05}
TRUTH = {
    (1, 1): 1.95,
    (2, 2): 1.91,
    (4, 4): 1.915,
    (8, 8): 1.925,
    (16, 16): 1.98,
    (4, 2): 1.922,
    (8, 4): 1.928,
    (4, 1): 1.94,
    (8, 1): 1.945,
}


@pytest.fixture
def make_study(tmp_path: Path) -> Callable[..., Study]:
    """Write records and costs into a study's folder."""

    def make(records: list[Record], costs: list[Cost] = [], name: str = "synthetic") -> Study:  # noqa: B006
        study = Study(tmp_path / name)
        study.runs.mkdir(parents=True, exist_ok=True)
        for record in records:
            study.write_record(record)
        for cost in costs:
            study.write_cost(cost)
        return study

    return make


def write_metrics(study: Study, record: Record, steps: int = 500) -> None:
    """A metrics.jsonl as training writes it: a row a step, and some of validation."""
    last = record.quality.val_loss
    assert last is not None
    lines = []
    for step in range(1, steps + 1):
        tokens = step * 2048
        loss = last + 3 * 0.985 ** (500 * step / steps)
        lines.append({"step": step, "tokens": tokens, "train/loss": loss, "lr": 0.003})
        if step % (steps // 5) == 0:
            lines.append({"step": step, "tokens": tokens, "val/loss": loss})
    path = study.run_folder(record.run_id) / "metrics.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def novel_records(seeds: int = 3, noise: float = 0.008, with_cost: bool = True) -> list[Record]:
    """The default study's runs: nine layouts, seed effects shared by all layouts."""
    rng = np.random.default_rng(7)
    effect = rng.normal(0, 0.015, seeds)
    records = []
    for (n_heads, n_kv), mean in TRUTH.items():
        layout = layout_of(n_heads, n_kv)
        cost = make_cost(layout) if with_cost else None
        for seed in range(seeds):
            loss = mean + effect[seed] + rng.normal(0, noise)
            records.append(
                make_record(
                    layout,
                    seed,
                    float(loss),
                    cost=cost,
                    slices={f"position_{p}": loss + up for p, up in _POSITIONS.items()},
                )
            )
    return records


@pytest.fixture
def novel(make_study: Callable[..., Study]) -> Study:
    """Nine layouts over three seeds, all completed and measured."""
    records = novel_records()
    costs = {r.cost.cost_id: r.cost for r in records if r.cost}
    study = make_study(records, list(costs.values()))
    for record in records:
        write_metrics(study, record)
    return study


@pytest.fixture(scope="session")
def novel_report(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """The same study with its report written, for tests that only read."""
    study = Study(tmp_path_factory.mktemp("session") / "novel")
    for record in novel_records():
        study.write_record(record)
        write_metrics(study, record)
    report.build(study)
    return study
