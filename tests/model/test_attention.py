"""The attention block against its definition: variant × backend × dtype × way of running it."""

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headcount.errors import RequestError
from headcount.layout import HeadLayout
from headcount.model import Transformer
from tests.model.reference import reference_attention
from tests.model.shapes import (
    GQA,
    LAYOUTS,
    MHA,
    first_attention,
    run_block,
    small_shape,
    without_position,
)

T = 12
WAYS = {"prefill": None, "chunked": [5, 3, 1, 3], "decode": [1] * T}
VARIANTS = {
    **{name: small_shape(layout, n_layers=1) for name, layout in LAYOUTS.items()},
    "qk-norm": small_shape(GQA, n_layers=1, qk_norm=True),
    "bidirectional": small_shape(GQA, n_layers=1, causal=False),
    "mha, no rope": small_shape(MHA, n_layers=1, position="none"),
}
LIMITS = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
Errors = dict[tuple[str, str, str], dict[str, float]]


@pytest.fixture(scope="module")
def errors() -> Iterator[Errors]:
    """Collects every largest relative error; `pytest -s` prints the table."""
    collected: Errors = {}
    yield collected
    columns = [*WAYS, "gradient"]
    print(f"\n{'variant':14} {'backend':10} {'dtype':9}" + "".join(f"{c:>10}" for c in columns))
    for (variant, backend, dtype), row in sorted(collected.items()):
        cells = "".join(f"{row[c]:10.1e}" if c in row else f"{'–':>10}" for c in columns)
        print(f"{variant:14} {backend:10} {dtype:9}{cells}")


def relative(found: Tensor, expected: Tensor) -> float:
    """Largest error, relative to the largest expected value."""
    return ((found.double() - expected).abs().max() / expected.abs().max()).item()


def case(variant: str, backend: str, dtype: torch.dtype) -> tuple[Transformer, Tensor]:
    model = Transformer(VARIANTS[variant], seed=3, backend=backend).eval().to(dtype)
    x = torch.randn(2, T, model.shape.layout.d_model, generator=torch.manual_seed(0))
    return model, x.to(dtype)


def reference(
    model: Transformer, x: Tensor, weights: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor]:
    shape = model.shape
    return reference_attention(
        x, weights, shape.layout, causal=shape.causal, rope=shape.position == "rope"
    )


def cases() -> list[tuple[str, str]]:
    """torch_mha takes the variants that nn.MultiheadAttention can express."""
    pairs = [(v, b) for v in VARIANTS for b in ("eager", "sdpa", "flex")]
    return [*pairs, ("mha, no rope", "torch_mha")]


@pytest.mark.parametrize("dtype", LIMITS, ids=["fp32", "bf16"])
@pytest.mark.parametrize(("variant", "backend"), cases())
@torch.inference_mode()
def test_outputs(variant: str, backend: str, dtype: torch.dtype, errors: Errors) -> None:
    model, x = case(variant, backend, dtype)
    expected, expected_maps = reference(model, x, dict(first_attention(model).named_parameters()))
    row = errors.setdefault((variant, backend, str(dtype).removeprefix("torch.")), {})
    for way, chunks in WAYS.items():
        if chunks and (backend == "torch_mha" or not model.shape.causal):
            continue
        maps: list[Tensor] = []
        with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
            found = run_block(model, x, chunks)
            with_maps = run_block(model, x, chunks, maps=maps)
        row[way] = relative(found, expected)
        assert row[way] <= LIMITS[dtype], way
        assert torch.equal(found, with_maps), "asking for the weights changed the output"
        if chunks is None:
            assert maps[0].shape == (2, model.shape.layout.n_heads, T, T)
            assert relative(maps[0], expected_maps) <= LIMITS[dtype]


@pytest.mark.parametrize("dtype", LIMITS, ids=["fp32", "bf16"])
@pytest.mark.parametrize(("variant", "backend"), [c for c in cases() if c[1] != "flex"])
def test_gradients(variant: str, backend: str, dtype: torch.dtype, errors: Errors) -> None:
    """Of the input and of every weight, against autograd through the float64 loop."""
    model, x = case(variant, backend, dtype)
    direction = torch.randn(x.shape, generator=torch.manual_seed(1)).to(dtype)
    parameters = dict(first_attention(model).named_parameters())
    sources = [x.requires_grad_(), *parameters.values()]
    found = torch.autograd.grad((run_block(model, x) * direction).sum(), sources)
    doubles = [s.detach().double().requires_grad_() for s in sources]
    output, _ = reference(model, doubles[0], dict(zip(parameters, doubles[1:], strict=True)))
    expected = torch.autograd.grad((output * direction.double()).sum(), doubles)
    worst = max(relative(f, e) for f, e in zip(found, expected, strict=True))
    errors.setdefault((variant, backend, str(dtype).removeprefix("torch.")), {})["gradient"] = worst
    assert worst <= LIMITS[dtype]


def test_a_tiled_kv_mapping_would_be_caught() -> None:
    """Query head i reads KV head i // group. With the KV heads tiled (i mod n_kv_heads), as some
    exporters do, the output differs: so the tests above can tell the two apart."""
    model, x = case("gqa", "sdpa", torch.float32)
    weights = dict(first_attention(model).named_parameters())
    tiled, _ = reference_attention(
        x, weights, GQA, causal=True, rope=True, kv_head_of=lambda i: i % GQA.n_kv_heads
    )
    assert relative(run_block(model, x), tiled) > 0.1


@pytest.mark.parametrize("backend", ["eager", "sdpa", "torch_mha"])
@torch.inference_mode()
def test_it_equals_nn_multihead_attention(backend: str) -> None:
    """The seed example: 8 heads at width 512 on 2 sequences of 128; eight maps a sequence."""
    shape = small_shape(HeadLayout.of(512, 8), n_layers=1, position="none", causal=False)
    model = Transformer(shape, backend=backend).eval()
    attention = first_attention(model)
    theirs = nn.MultiheadAttention(512, 8, bias=False, batch_first=True).eval()
    theirs.in_proj_weight.copy_(attention.qkv.weight)
    theirs.out_proj.weight.copy_(attention.out.weight)
    x = torch.randn(2, 128, 512, generator=torch.manual_seed(0))
    expected, expected_maps = theirs(x, x, x, need_weights=True, average_attn_weights=False)
    maps: list[Tensor] = []
    found = run_block(model, x, maps=maps)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert maps[0].shape == expected_maps.shape == (2, 8, 128, 128)
    torch.testing.assert_close(maps[0], expected_maps, rtol=0, atol=1e-6)
    torch.testing.assert_close(maps[0].sum(-1), torch.ones(2, 8, 128))


@torch.inference_mode()
def test_flex_compiled_equals_the_loop_too() -> None:
    """The tests above run flex_attention uncompiled; this is the kernel a user gets."""
    model, x = case("gqa", "flex", torch.float32)
    expected, _ = reference(model, x, dict(first_attention(model).named_parameters()))
    assert relative(run_block(model, x, [9, 3]), expected) <= 1e-5


def test_flex_trains_through_sdpa_on_a_cpu_and_says_so() -> None:
    model, x = case("gqa", "flex", torch.float32)
    with pytest.warns(UserWarning, match="flex has no backward pass on a CPU: sdpa runs instead"):
        run_block(model, x).sum().backward()
    assert all(p.grad is not None for p in first_attention(model).parameters())


def test_flex_has_no_dropout_and_says_so() -> None:
    model = Transformer(small_shape(), attention_dropout=0.5, backend="flex")
    with (
        torch.no_grad(),
        pytest.warns(UserWarning, match=r"no dropout \(model.attention_dropout\)"),
    ):
        model(torch.randint(0, 40, (1, 5)))


def test_torch_mha_decodes_through_sdpa_and_says_so() -> None:
    model, x = case("mha, no rope", "torch_mha", torch.float32)
    expected, _ = reference(model, x, dict(first_attention(model).named_parameters()))
    with torch.no_grad(), pytest.warns(UserWarning, match="torch_mha has no KV cache: sdpa runs"):
        assert relative(run_block(model, x, [5, 7]), expected) <= 1e-5


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"layout": without_position(GQA), "position": "none"}, "attention=gqa"),
        ({"layout": HeadLayout(32, 4, 4, 4), "position": "none"}, "model.d_head=4"),
        ({"layout": MHA}, "model.position=rope"),
        ({"layout": MHA, "position": "none", "qk_norm": True}, "model.qk_norm=true"),
        ({"layout": MHA, "position": "none", "bias": "qkv"}, "model.bias=qkv"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_torch_mha_cannot_express_is_refused(changes: dict[str, Any], names: str) -> None:
    with pytest.raises(RequestError) as error:
        Transformer(small_shape(**changes), backend="torch_mha")
    assert names in str(error.value)
    assert "\n" not in str(error.value)


def test_an_unknown_backend_is_refused_with_the_nearest() -> None:
    with pytest.raises(RequestError, match=r"model\.backend=spda; did you mean sdpa"):
        Transformer(small_shape(), backend="spda")


@pytest.mark.parametrize("backend", ["eager", "sdpa", "torch_mha"])
def test_dropout_is_off_in_eval_mode(backend: str) -> None:
    """F.scaled_dot_product_attention applies dropout whatever the module's mode is."""
    shape = small_shape(MHA, position="learned")
    model = Transformer(shape, dropout=0.5, attention_dropout=0.5, backend=backend)
    tokens = torch.randint(0, 40, (2, 9))
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


def test_no_position_sees_the_future() -> None:
    model = Transformer(small_shape()).eval()
    tokens = torch.randint(0, 40, (1, 12))
    other = tokens.clone()
    other[:, 7:] = (other[:, 7:] + 1) % 40
    before, after = model(tokens), model(other)
    torch.testing.assert_close(before[:, :7], after[:, :7])
    assert (before[:, 7:] - after[:, 7:]).abs().max() > 1e-3


def test_every_position_sees_the_future_where_nothing_is_causal() -> None:
    model = Transformer(small_shape(causal=False)).eval()
    tokens = torch.randint(0, 40, (1, 12))
    other = tokens.clone()
    other[:, -1] = (other[:, -1] + 1) % 40
    changed = (model(tokens) - model(other)).abs().amax(-1)
    assert bool((changed > 1e-4).all())
