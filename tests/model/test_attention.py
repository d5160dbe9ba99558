"""The attention block against its definition."""

import pytest
import torch
from torch import Tensor

from headcount.layout import HeadLayout
from headcount.model import Transformer
from headcount.model.attention import Attention
from tests.model.reference import reference_attention
from tests.model.shapes import GQA, LAYOUTS, small_shape


def block(layout: HeadLayout, causal: bool = True) -> Attention:
    """The first attention block of a small model, in float64, without positions."""
    model = Transformer(small_shape(layout, position="none", causal=causal), seed=3).double()
    return model.blocks[0].attention


def weights(attention: Attention) -> dict[str, Tensor]:
    a = attention.layout
    wq, wk, wv = attention.qkv.weight.detach().split([a.q_width, a.kv_width, a.kv_width])
    return {"wq": wq, "wk": wk, "wv": wv, "wo": attention.out.weight.detach()}


def numbers(layout: HeadLayout) -> dict[str, int]:
    return {"n_heads": layout.n_heads, "n_kv_heads": layout.n_kv_heads, "d_head": layout.d_head}


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_it_equals_a_loop_over_heads(name: str, causal: bool) -> None:
    layout = LAYOUTS[name]
    attention = block(layout, causal)
    x = torch.randn(2, 11, layout.d_model, generator=torch.manual_seed(0), dtype=torch.float64)
    expected, _ = reference_attention(
        x, **weights(attention), **numbers(layout), causal=causal, rope=False
    )
    torch.testing.assert_close(attention(x), expected, rtol=1e-12, atol=1e-12)


def test_a_tiled_kv_mapping_would_be_caught() -> None:
    """Query head i reads KV head i // group. With the KV heads tiled (i mod n_kv_heads), as some
    exporters do, the output differs: so the test above can tell the two apart."""
    attention = block(GQA)
    x = torch.randn(2, 11, GQA.d_model, generator=torch.manual_seed(0), dtype=torch.float64)
    tiled, _ = reference_attention(
        x,
        **weights(attention),
        **numbers(GQA),
        causal=True,
        rope=False,
        kv_head_of=lambda i: i % GQA.n_kv_heads,
    )
    assert (attention(x) - tiled).abs().max() > 1e-2


def test_dropout_is_off_in_eval_mode() -> None:
    """F.scaled_dot_product_attention applies dropout whatever the module's mode is."""
    model = Transformer(small_shape(), dropout=0.5).eval()
    tokens = torch.randint(0, 40, (2, 9))
    assert torch.equal(model(tokens), model(tokens))


def test_no_position_sees_the_future() -> None:
    model = Transformer(small_shape()).eval()
    tokens = torch.randint(0, 40, (1, 12))
    other = tokens.clone()
    other[:, 7:] = (other[:, 7:] + 1) % 40
    before, after = model(tokens), model(other)
    torch.testing.assert_close(before[:, :7], after[:, :7])
    assert (before[:, 7:] - after[:, 7:]).abs().max() > 1e-3
