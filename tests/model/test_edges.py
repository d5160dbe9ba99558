"""The smallest and the oddest: finite, or refused as docs/attention.md says."""

import pytest
import torch

from headcount.errors import LayoutError
from headcount.layout import HeadLayout
from headcount.model import KVCache, Transformer
from tests.model.shapes import LAYOUTS, MHA, MLA, small_shape, without_position


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("d_head", [1, 3, 12, 320])
def test_head_widths_train_and_decode(d_head: int, backend: str) -> None:
    """1 (a scalar head), an odd one, one no power of two, one beyond what flash kernels take on GPUs."""
    position = "rope" if d_head % 2 == 0 else "learned"
    shape = small_shape(HeadLayout(16, 4, 2, d_head), position=position)
    model = Transformer(shape, backend=backend)
    tokens = torch.randint(0, 40, (2, 6))
    model(tokens).square().mean().backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters())
    model.eval()
    cache = KVCache(shape, 2, 6)
    with torch.inference_mode():
        pieces = [model(piece, cache) for piece in tokens.split(1, dim=1)]
        torch.testing.assert_close(torch.cat(pieces, 1), model(tokens), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", LAYOUTS)
@torch.inference_mode()
def test_one_row_of_one_token(name: str) -> None:
    """Batch 1, context 1: the only weight is one, so the block gives its value."""
    model = Transformer(small_shape(LAYOUTS[name])).eval()
    cache = KVCache(model.shape, 1, 1)
    maps: list[torch.Tensor] = []
    logits = model(torch.tensor([[7]]), cache, maps=maps)
    torch.testing.assert_close(logits, model(torch.tensor([[7]])))
    assert all(torch.equal(m, torch.ones(1, m.size(1), 1, 1)) for m in maps)


def test_no_token_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one input a row"):
        Transformer(small_shape())(torch.empty(2, 0, dtype=torch.long))


@pytest.mark.parametrize(
    ("layout", "changes", "message"),
    [
        (HeadLayout(15, 5, 5, 3), {}, "model.d_head=3 .* nearest valid d_head: 2 or 4"),
        (HeadLayout(4, 4, 4, 1), {}, "model.d_head=1 .* nearest valid d_head: 2"),
        (HeadLayout(32, 4, 4, 8, 12, 3), {}, "model.d_rope=3 .* nearest valid d_rope: 2 or 4"),
        (HeadLayout(32, 4, 4, 8, 12), {}, "model.d_rope=0 .* nearest valid d_rope: 2"),
        (MLA, {"position": "learned"}, "model.d_rope=4 has no effect with model.position=learned"),
        (MLA, {"bias": "qkv"}, "model.bias=qkv with attention=mla; valid: none"),
        (MLA, {"qk_norm": True}, "model.qk_norm=true with attention=mla"),
        (MHA, {"bias": "all"}, "model.bias=all with model.norm=rmsnorm"),
    ],
    ids=["odd", "one", "odd rope", "no rope", "rope unused", "mla bias", "mla qk", "rms bias"],
)
def test_what_does_not_go_together_is_refused(
    layout: HeadLayout, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(LayoutError, match=message):
        small_shape(layout, **changes)


def test_odd_heads_are_fine_under_mla_whose_rotary_part_is_its_own() -> None:
    shape = small_shape(HeadLayout(16, 2, 2, 5, d_latent=6, d_rope=2))
    assert bool(Transformer(shape)(torch.tensor([[1, 2, 3]])).isfinite().all())


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((32, 4, 2, 8, 12, 4), "model.n_kv_heads=2 with attention=mla .*; valid: 4"),
        ((32, 4, 4, 8, 0, 4), "model.d_rope=4 with model.d_latent=0"),
        ((32, 4, 4, 8, -1, 0), "model.d_latent=-1: must be at least 0"),
    ],
)
def test_an_impossible_latent_layout_is_refused(numbers: tuple[int, ...], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        HeadLayout(*numbers)


def test_mla_without_positions_has_no_rotary_part() -> None:
    layout = without_position(MLA)
    assert layout.cached == ((1, 12),)
    shape = small_shape(layout, position="none")
    assert bool(Transformer(shape)(torch.tensor([[1, 2, 3]])).isfinite().all())


def test_a_cache_of_another_type_is_refused() -> None:
    shape = small_shape()
    cache = KVCache(shape, 1, 4, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"KV cache of torch\.bfloat16 cannot take torch\.float32"):
        Transformer(shape)(torch.tensor([[1]]), cache)


@torch.inference_mode()
def test_half_precision_caches_decode() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        shape = small_shape()
        model = Transformer(shape).to(dtype).eval()
        cache = KVCache(shape, 1, 4, dtype=dtype)
        tokens = torch.tensor([[1, 2, 3, 4]])
        pieces = [model(piece, cache) for piece in tokens.split([3, 1], dim=1)]
        torch.testing.assert_close(torch.cat(pieces, 1), model(tokens), atol=5e-2, rtol=0)


def test_the_same_weights_whatever_stands_behind_the_queries() -> None:
    """Layouts that share a matrix's shape start from the same matrix; biases at zero."""
    a = Transformer(small_shape(HeadLayout(32, 4, 4, 8)), seed=1).state_dict()
    b = Transformer(small_shape(HeadLayout(32, 4, 1, 8)), seed=1).state_dict()
    assert torch.equal(
        a["blocks.1.attention.qkv.weight"][:32], b["blocks.1.attention.qkv.weight"][:32]
    )
    assert torch.equal(a["blocks.0.mlp.up.weight"], b["blocks.0.mlp.up.weight"])
    biased = Transformer(small_shape(MHA, bias="all", norm="layernorm"), seed=1)
    assert all(not p.any() for name, p in biased.named_parameters() if name.endswith("bias"))
