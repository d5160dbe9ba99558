"""`headcount account`: published sizes, and every shipped configuration against what it builds."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from headcount.cli import app
from headcount.config import Config
from headcount.hydra_app import compose
from headcount.model import KVCache, Transformer

CONF = Path(__file__).parents[1] / "conf"


def account(*overrides: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["account", *overrides, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    figures: dict[str, Any] = json.loads(result.output)
    return figures


@pytest.mark.parametrize(
    ("preset", "n_params", "kv_bytes"),
    [
        ("llama-2-7b", 6_738_415_616, 524_288),
        ("llama-2-70b", 68_976_648_192, 327_680),
        ("llama-3-8b", 8_030_261_248, 131_072),
        ("mistral-7b", 7_241_732_096, 131_072),
        ("gpt2", 124_439_808, 36_864),
        ("gemma-7b", 8_537_680_896, 458_752),
        ("qwen2-7b", 7_615_616_512, 57_344),
        ("qwen3-8b", 8_190_735_360, 147_456),
    ],
)
def test_presets_have_their_published_size(preset: str, n_params: int, kv_bytes: int) -> None:
    """Parameters as the model cards state them; KV bytes a token at 2 bytes, by
    2·n_layers·n_kv_heads·d_head·2 of the published configurations."""
    figures = account(f"model={preset}", "account.dtype=bf16")
    assert figures["compute/n_params"] == n_params
    assert figures["kv_cache/bytes_per_token"] == kv_bytes


def test_nanogpt_s_gpt2() -> None:
    """nanoGPT, transformer_sizing.ipynb: GPT-2 without biases over 1,024 tokens."""
    figures = account("model=gpt2", "model.bias=none", "account.seq_len=1024")
    assert figures["compute/n_params"] == 124_337_664
    assert figures["compute/forward_flops"] == 291_648_307_200
    assert figures["compute/train_flops"] == 874_944_921_600
    assert 1024 * figures["compute/train_flops_per_token"] == 875_062_886_400


def test_the_seed_example() -> None:
    figures = account("model.d_model=512", "model.n_heads=8")
    assert figures["compute/n_params_attention_per_layer"] == 1_048_576


def test_a_control_says_what_it_came_to() -> None:
    figures = account("control=iso_params", "attention=mqa", "model.n_heads=8")
    assert figures["control/key"] == "model.d_ff"
    assert figures["control/achieved"] == figures["compute/n_params"]
    residual = figures["control/achieved"] / figures["control/target"] - 1
    assert figures["control/residual"] == pytest.approx(residual)
    assert abs(residual) <= 0.02


def test_mla_is_counted_by_its_latent() -> None:
    figures = account("attention=mla", "model.d_latent=24", "model.d_rope=8")
    assert figures["layout/kind"] == "mla"
    assert figures["kv_cache/bytes_per_token"] == 2 * (24 + 8) * 4


GIVEN = {"attention=gqa": ["model.kv_group_size=2"], "control=fixed_d_head": ["control.d_head=8"]}
SHIPPED = [
    [f"{group}={file.stem}", *GIVEN.get(f"{group}={file.stem}", [])]
    for group in ("model", "attention", "control", "task", "experiment")
    for file in sorted((CONF / group).glob("*.yaml"))
    # Only a gqa model has KV heads to match.
    if f"{group}={file.stem}" != "control=iso_kv_bytes"
]


@pytest.mark.parametrize("overrides", SHIPPED, ids=lambda o: o[0])
def test_every_shipped_configuration_is_what_it_says(overrides: list[str]) -> None:
    """Σ numel, the cache's bytes and torch's FLOPs, all on the meta device: nothing is allocated."""
    config = compose(overrides)
    with torch.device("meta"):
        model = Transformer(config.shape, backend="eager").eval()
        cache = KVCache(config.shape, 1, 3, torch.bfloat16, "meta")
    figures = config.shape.account("bf16", 3)
    assert sum(p.numel() for p in model.parameters()) == figures["compute/n_params"]
    assert cache.bytes_per_token == figures["kv_cache/bytes_per_token"]
    assert counted(config, model) == figures["compute/forward_flops"]


def counted(config: Config, model: Transformer) -> int:
    shape = config.shape
    inputs = torch.zeros(1, 3, dtype=torch.long, device="meta")
    if shape.inputs == "vectors":
        inputs = torch.zeros(1, 3, shape.n_inputs, device="meta")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(inputs)
    return counter.get_total_flops()


def test_an_equal_cache_of_gqa() -> None:
    config = compose(
        ["control=iso_kv_bytes", "attention=gqa", "model.n_heads=8", "control.reference.n_heads=4"]
    )
    reference = replace(config.shape.layout, n_heads=4, n_kv_heads=4, d_head=16)
    assert config.shape.layout.kv_bytes_per_token(2) == reference.kv_bytes_per_token(2)
