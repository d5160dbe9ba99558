"""Cutting heads out equals ablating them; merging equal KV heads changes nothing. Independent of the
code under test: logits of the whole model with the output projection's columns set to zero by hand."""

import copy

import pytest
import torch

from headcount.errors import LayoutError, RequestError
from headcount.heads.surgery import POOLINGS, convert, kept_reads, prune
from headcount.layout import HeadLayout
from headcount.model import KVCache, Transformer
from headcount.model.generation import generate
from headcount.shape import ModelShape
from tests.model.shapes import LAYOUTS, small_shape, without_position

KEPT = {
    "mha": ([0, 2], [1, 2, 3]),
    "gqa": ([0, 1, 2, 5], [4, 6, 7]),  # groups of 3 and 1; one group empty
    "mqa": ([3], [0, 2]),
}


def trained(shape: ModelShape, **options) -> Transformer:
    """A model whose every part matters: biases and norms are not at their initial values."""
    model = Transformer(shape, seed=1, **options).eval()
    g = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=g) * 0.2)
    return model


def zeroed(model: Transformer, kept) -> Transformer:
    other = copy.deepcopy(model)
    with torch.no_grad():
        for block, heads in zip(other.blocks, kept, strict=True):
            out, d = block.attention.out.weight, block.attention.layout.d_head
            for h in range(block.attention.layout.n_heads):
                if h not in heads:
                    out[:, h * d : (h + 1) * d] = 0
    return other


def cut(model: Transformer, kept, **options) -> Transformer:
    """The pruned model, built from its shape and loaded with its weights."""
    shape = model.shape
    layers = tuple(
        HeadLayout.reading(shape.layout.d_model, shape.layout.d_head, kept_reads(layer, heads))
        for layer, heads in zip(shape.layer_layouts, kept, strict=True)
    )
    fields = {f: getattr(shape, f) for f in shape.__dataclass_fields__}
    other = Transformer(ModelShape(**fields | {"layers": layers}), **options).eval()
    other.load_state_dict(prune(model, kept))
    return other


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("bias", ["none", "qkv", "all"])
@pytest.mark.parametrize("name", KEPT)
def test_cut_out_equals_zeroed(name, bias, backend):
    norm = "layernorm" if bias == "all" else "rmsnorm"
    model = trained(small_shape(LAYOUTS[name], bias=bias, norm=norm, qk_norm=bias == "none"))
    tokens = torch.randint(40, (2, 20), generator=torch.Generator().manual_seed(0))
    for kept in (KEPT[name], ([], KEPT[name][1])):  # a layer may lose all its heads
        pruned = cut(model, kept, backend=backend)
        with torch.no_grad():
            expected, found = zeroed(model, kept)(tokens), pruned(tokens)
        assert (expected - found).abs().max() < 1e-5
        assert sum(p.numel() for p in pruned.parameters()) == pruned.shape.n_params
        assert pruned.shape.n_params < model.shape.n_params


@pytest.mark.parametrize("name", KEPT)
def test_a_pruned_model_decodes_and_caches_only_what_is_left(name):
    model = trained(small_shape(LAYOUTS[name]))
    pruned = cut(model, KEPT[name])
    tokens = torch.randint(40, (2, 16), generator=torch.Generator().manual_seed(0))
    cache = KVCache(pruned.shape, 2, 16)
    with torch.no_grad():
        steps = [pruned(tokens[:, i : i + 1], cache) for i in range(16)]
        whole = pruned(tokens)
        assert (torch.cat(steps, dim=1) - whole).abs().max() < 1e-5
    assert cache.bytes_per_token == pruned.shape.kv_bytes_per_token("fp32")
    kv_heads = [len({LAYOUTS[name].kv_of[h] for h in heads}) for heads in KEPT[name]]
    d_head = LAYOUTS[name].d_head
    assert cache.bytes_per_token == sum(2 * n * d_head * 4 for n in kv_heads)
    assert torch.equal(
        generate(pruned, tokens[:, :5], 6), generate(zeroed(model, KEPT[name]), tokens[:, :5], 6)
    )


def test_uneven_groups_have_the_maps_of_the_whole_model():
    model = trained(small_shape(LAYOUTS["gqa"]))
    kept = KEPT["gqa"]
    tokens = torch.randint(40, (2, 16), generator=torch.Generator().manual_seed(0))
    whole: list[torch.Tensor] = []
    left: list[torch.Tensor] = []
    with torch.no_grad():
        zeroed(model, kept)(tokens, maps=whole)
        cut(model, kept)(tokens, maps=left)
    for a, b, heads in zip(whole, left, kept, strict=True):
        torch.testing.assert_close(a[:, list(heads)], b)


def test_pruning_what_is_pruned_goes_on_from_there():
    model = trained(small_shape(LAYOUTS["gqa"]))
    once = cut(model, KEPT["gqa"])
    twice = cut(once, ([0, 3], [1]))  # of the heads that are left
    tokens = torch.randint(40, (1, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        difference = zeroed(model, ([0, 5], [6]))(tokens) - twice(tokens)
    assert difference.abs().max() < 1e-5
    assert [layer.reads for layer in twice.shape.layers] == [(0, 1), (0,)]


def test_a_pruned_model_can_be_trained_on():
    pruned = cut(trained(small_shape(LAYOUTS["gqa"])), KEPT["gqa"])
    pruned(torch.randint(40, (1, 12))).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in pruned.parameters())


@pytest.mark.parametrize("bias", ["none", "all"])
@pytest.mark.parametrize("how", ["mean", "first"])
@pytest.mark.parametrize("n_kv_heads", [1, 2])
def test_converting_equal_kv_heads_is_exact(n_kv_heads, how, bias):
    norm = "layernorm" if bias == "all" else "rmsnorm"
    layout = HeadLayout(32, 4, 4, 8)
    model = trained(small_shape(layout, bias=bias, norm=norm))
    group = 4 // n_kv_heads
    with torch.no_grad():
        for block in model.blocks:
            for part in (block.attention.qkv.weight, block.attention.qkv.bias):
                if part is not None:
                    kv = part[32:].view(2, n_kv_heads, group, 8, -1)
                    kv.copy_(kv[:, :, :1].expand_as(kv).clone())
    other = Transformer(small_shape(HeadLayout(32, 4, n_kv_heads, 8), bias=bias, norm=norm)).eval()
    other.load_state_dict(convert(model, n_kv_heads, how, seed=0))
    tokens = torch.randint(40, (2, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        difference = model(tokens) - other(tokens)
    assert difference.abs().max() < 1e-5


def test_pooled_heads_are_the_groups_mean_first_and_a_new_one():
    model = trained(small_shape(HeadLayout(32, 4, 4, 8)))
    before = model.blocks[1].attention.qkv.weight
    for how in POOLINGS:
        after = convert(model, 2, how, seed=0)["blocks.1.attention.qkv.weight"]
        assert torch.equal(after[:32], before[:32])  # queries stay
        keys = before[32:64].view(2, 2, 8, 32)
        found = after[32:48].view(2, 8, 32)
        if how == "mean":
            torch.testing.assert_close(found, (keys[:, 0] + keys[:, 1]) / 2)
        elif how == "first":
            assert torch.equal(found, keys[:, 0])
        else:
            assert float(found.std()) == pytest.approx(32**-0.5, rel=0.2)
            again = convert(model, 2, how, seed=0)["blocks.1.attention.qkv.weight"]
            other = convert(model, 2, how, seed=1)["blocks.1.attention.qkv.weight"]
            assert torch.equal(again, after) and not torch.equal(other, after)


def test_what_cannot_be_cut_or_merged_is_refused():
    mla = Transformer(small_shape(LAYOUTS["mla"]))
    for act in (lambda: prune(mla, ([0], [0])), lambda: convert(mla, 1, "mean", 0)):
        with pytest.raises(RequestError, match="attention=mla, whose heads share one latent"):
            act()
    mha = Transformer(small_shape(LAYOUTS["mha"]))
    with pytest.raises(
        RequestError, match=r"model.n_kv_heads=3: the run has 4 KV heads; valid: 1, 2"
    ):
        convert(mha, 3, "mean", 0)
    with pytest.raises(RequestError, match="layers differ in heads"):
        convert(cut(mha, KEPT["mha"]), 1, "mean", 0)


def test_a_shape_of_different_layers_adds_up_layer_by_layer():
    """By hand: layers of 4 query heads on 2 KV heads and of 3 on 1, d_model 32, d_head 4."""
    gqa = LAYOUTS["gqa"]
    layers = (HeadLayout.reading(32, 4, [0, 0, 0, 1]), HeadLayout.reading(32, 4, [0, 0, 0]))
    shape = small_shape(gqa, layers=layers)
    plain = small_shape(gqa)
    assert shape.n_params_by_part["attention"] == 32 * 4 * ((8 + 4) + (6 + 2))
    assert shape.kv_bytes_per_token("bf16") == 2 * 2 * 4 * (2 + 1)
    # Scores and values over a context of 10: 4·d_head a head and key.
    assert shape.decode_flops(10) - 2 * shape.n_matmul == 4 * 4 * (4 + 3) * 10
    assert ModelShape.from_dict(shape.as_dict()) == shape
    assert "layers" not in plain.as_dict() and "reads" not in plain.as_dict()["layout"]
    assert small_shape(gqa, layers=(gqa, gqa)).n_params == plain.n_params
    with pytest.raises(LayoutError, match=r"model.heads has 1 layers; valid: model.n_layers=2"):
        small_shape(gqa, layers=layers[:1])
    for reads in ([1, 0], [0, 2]):
        with pytest.raises(LayoutError, match="from 0 on, in order, without gaps"):
            HeadLayout.reading(32, 4, reads)


def test_no_position_and_no_mlp():
    shape = small_shape(without_position(LAYOUTS["gqa"]), position="none", mlp="none")
    model = trained(shape)
    tokens = torch.randint(40, (2, 20), generator=torch.Generator().manual_seed(0))
    kept = ([0], [])
    with torch.no_grad():
        difference = zeroed(model, kept)(tokens) - cut(model, kept)(tokens)
    assert difference.abs().max() < 1e-5
