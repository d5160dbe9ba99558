"""ModelShape's closed forms, against published numbers, the built module and torch's counter."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from headcount.layout import HeadLayout
from headcount.model import KVCache, Transformer
from headcount.shape import ModelShape
from tests.model.shapes import LAYOUTS, MHA, MLA, small_shape, without_position

GPT2_NO_BIAS = ModelShape(
    layout=HeadLayout(768, 12, 12, 64),
    n_layers=12,
    d_ff=3072,
    mlp="gelu",
    position="learned",
    norm="layernorm",
    tie_embeddings=True,
    inputs="tokens",
    n_inputs=50257,
    n_outputs=50257,
    max_len=1024,
)


def llama(layers: int, layout: HeadLayout, d_ff: int, vocab: int) -> ModelShape:
    return ModelShape(
        layout=layout,
        n_layers=layers,
        d_ff=d_ff,
        mlp="swiglu",
        position="rope",
        norm="rmsnorm",
        tie_embeddings=False,
        inputs="tokens",
        n_inputs=vocab,
        n_outputs=vocab,
        max_len=4096,
    )


def test_gpt2_without_biases_as_nanogpt_sizes_it() -> None:
    """nanoGPT, transformer_sizing.ipynb: parameters, FLOPs of a forward and of a training step over
    1,024 tokens by counting, and the latter by PaLM's formula."""
    assert GPT2_NO_BIAS.n_params == 124_337_664
    assert GPT2_NO_BIAS.forward_flops(1024) == 291_648_307_200
    assert 3 * GPT2_NO_BIAS.forward_flops(1024) == 874_944_921_600
    assert 1024 * GPT2_NO_BIAS.train_flops_per_token(1024) == 875_062_886_400


@pytest.mark.parametrize(
    ("shape", "n_params", "kv_bytes"),
    [
        (llama(32, HeadLayout(4096, 32, 32, 128), 11008, 32000), 6_738_415_616, 524_288),
        (llama(80, HeadLayout(8192, 64, 8, 128), 28672, 32000), 68_976_648_192, 327_680),
        (llama(32, HeadLayout(4096, 32, 8, 128), 14336, 128256), 8_030_261_248, 131_072),
        (llama(32, HeadLayout(4096, 32, 8, 128), 14336, 32000), 7_241_732_096, 131_072),
    ],
    ids=["Llama-2-7B", "Llama-2-70B", "Llama-3-8B", "Mistral-7B"],
)
def test_published_sizes(shape: ModelShape, n_params: int, kv_bytes: int) -> None:
    """Parameter counts from the models' published configurations; KV bytes a token at 2 bytes."""
    assert shape.n_params == n_params
    assert shape.kv_bytes_per_token("bf16") == kv_bytes


def test_scores_of_the_seed_example() -> None:
    """QKᵀ over 128 tokens at width 512: 8,388,608 multiply-accumulates with 1 head as with 8; the
    weighted sum of the values costs as many, and one of each is two FLOPs."""
    for n_heads in (1, 8):
        shape = small_shape(HeadLayout.of(512, n_heads), n_layers=1)
        scores = shape.forward_flops(128) - 2 * 128 * shape.n_matmul
        assert scores == 2 * 2 * 8_388_608


def test_decode_flops_by_counting() -> None:
    shape = GPT2_NO_BIAS
    assert shape.decode_flops(100) == 2 * shape.n_matmul + 4 * 12 * 12 * 64 * 100


def test_attention_arithmetic_depends_on_query_heads_alone() -> None:
    """At fixed n_heads, fewer KV heads save projections, not scores."""
    shapes = [small_shape(HeadLayout(64, 8, kv, 8)) for kv in (8, 2, 1)]
    scores = {s.forward_flops(16) - 2 * 16 * s.n_matmul for s in shapes}
    assert len(scores) == 1
    assert shapes[0].n_matmul > shapes[1].n_matmul > shapes[2].n_matmul


SHAPES = {
    **{name: small_shape(layout) for name, layout in LAYOUTS.items()},
    "gpt2-like": small_shape(mlp="gelu", norm="layernorm", position="learned", tie_embeddings=True),
    "gpt2-like, biases": small_shape(MHA, mlp="gelu", norm="layernorm", bias="all"),
    "qwen-like": small_shape(bias="qkv", qk_norm=True, mlp="geglu"),
    "mla, no rope": small_shape(without_position(MLA), position="none", mlp="none"),
    "attention only": small_shape(mlp="none", position="none"),
    "vectors": small_shape(inputs="vectors", n_inputs=5, n_outputs=1, causal=False),
}


def an_input(shape: ModelShape, batch_size: int, t: int) -> torch.Tensor:
    if shape.inputs == "vectors":
        return torch.randn(batch_size, t, shape.n_inputs)
    return torch.randint(0, shape.n_inputs, (batch_size, t))


@pytest.mark.parametrize("name", SHAPES)
def test_the_built_module_has_the_parameters_of_each_part(name: str) -> None:
    shape = SHAPES[name]
    model = Transformer(shape)
    counted = dict.fromkeys(shape.n_params_by_part, 0)
    for key, parameter in model.named_parameters():
        counted[part_of(key)] += parameter.numel()
    assert counted == shape.n_params_by_part
    assert sum(p.numel() for p in model.parameters()) == shape.n_params


def part_of(parameter: str) -> str:
    """The part of the accounting that a parameter belongs to, by its name."""
    if "norm" in parameter:
        return "norm"
    if parameter.startswith("blocks."):
        return parameter.split(".")[2]
    return {"embed": "embedding", "head": "output"}.get(parameter.split(".")[0], "position")


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("t", [2, 9])
def test_torch_counts_the_same_flops(name: str, t: int) -> None:
    """On the meta device, through plain matrix products: fused kernels pad MLA's values."""
    shape = SHAPES[name]
    assert counted_flops(shape, t, past=0, last_only=False) == 3 * shape.forward_flops(t)
    assert counted_flops(shape, t, past=0, last_only=True) == 3 * shape.prefill_flops(t)
    a = shape.layout
    # Absorbed MLA sums whole cached rows, the rotary key too, because slicing it off would copy.
    unused = 2 * shape.n_layers * a.n_heads * a.d_rope * (t + 1)
    found = counted_flops(shape, 1, past=t, last_only=True)
    assert found == 3 * (shape.decode_flops(t + 1) + unused)


def counted_flops(shape: ModelShape, t: int, past: int, last_only: bool) -> int:
    """torch's own count of a forward of 3 rows of t inputs behind `past` cached ones."""
    with torch.device("meta"):
        model = Transformer(shape, backend="eager").eval()
        cache = KVCache(shape, batch_size=3, max_len=past + t, device="meta")
        cache.advance(past)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(an_input(shape, 3, t).to("meta"), cache, last_only)
    return counter.get_total_flops()


def test_training_flops_are_three_forwards() -> None:
    """By torch's counter: the backward pass does two matrix products for each of the forward's."""
    shape = small_shape()
    model = Transformer(shape, backend="eager")
    with FlopCounterMode(display=False) as counter:
        model(an_input(shape, 1, 9)).sum().backward()
    assert counter.get_total_flops() == shape.train_flops(9)


@pytest.mark.parametrize("context", [1, 128, 100_000])
def test_decode_intensity_is_the_published_one(context: int) -> None:
    """2T / (2 + (2/g)·T) (Zadouri 2025, Table 1), which tends to the group size g."""
    for n_kv_heads in (8, 2, 1):
        shape = small_shape(HeadLayout(64, 8, n_kv_heads, 8))
        g = 8 / n_kv_heads
        expected = 2 * context / (2 + 2 / g * context)
        assert shape.decode_intensity(context, "bf16") == pytest.approx(expected)
        if context == 100_000:
            assert shape.decode_intensity(context, "bf16") == pytest.approx(g, rel=1e-3)


def test_mla_caches_the_latent() -> None:
    """DeepSeek-V2 (arXiv 2405.04434, Table 1): (d_c + d_h^R)·l elements a token, with d_c = 512,
    d_h^R = 64 and 60 layers, against 2·n_h·d_h·l of MHA."""
    layout = HeadLayout(5120, 128, 128, 128, d_latent=512, d_rope=64)
    shape = small_shape(layout, n_layers=60)
    assert shape.kv_bytes_per_token("bf16") == 60 * (512 + 64) * 2 == 69_120


@given(
    d_model=st.integers(1, 24),
    n_kv_heads=st.integers(1, 4),
    group=st.integers(1, 4),
    d_head=st.integers(1, 8),
    n_layers=st.integers(1, 3),
    mlp=st.sampled_from(["swiglu", "gelu", "none"]),
    tied=st.booleans(),
)
@settings(deadline=None, max_examples=60)
def test_any_valid_layout_builds_runs_and_agrees_with_the_accounting(
    d_model: int, n_kv_heads: int, group: int, d_head: int, n_layers: int, mlp: str, tied: bool
) -> None:
    layout = HeadLayout(d_model, n_kv_heads * group, n_kv_heads, d_head)
    position = "rope" if d_head % 2 == 0 else "learned"
    shape = small_shape(layout, n_layers=n_layers, mlp=mlp, tie_embeddings=tied, position=position)
    model = Transformer(shape).eval()
    cache = KVCache(shape, batch_size=1, max_len=4)
    assert sum(p.numel() for p in model.parameters()) == shape.n_params
    assert cache.allocated_bytes == 4 * shape.kv_bytes_per_token("fp32")
    with torch.inference_mode():
        logits = model(torch.tensor([[1, 2, 3]]), cache)
    assert logits.shape == (1, 3, 40)
    assert bool(logits.isfinite().all())
