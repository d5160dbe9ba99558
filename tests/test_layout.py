"""HeadLayout: its arithmetic, its kinds and its refusals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headcount.errors import LayoutError
from headcount.layout import HeadLayout, divisors


@pytest.mark.parametrize("n_heads", [1, 2, 4, 8, 16, 32, 64, 128, 256, 512])
def test_heads_cost_no_weights_at_a_fixed_width(n_heads: int) -> None:
    """3·512·512 + 512·512 whether one head of 512 or 512 heads of 1."""
    assert HeadLayout.of(512, n_heads).n_params == 1_048_576


@pytest.mark.parametrize(
    ("numbers", "kind", "label"),
    [
        ((512, 1, 1, 512), "single", "single h1"),
        ((512, 8, 8, 64), "mha", "mha h8"),
        ((512, 8, 2, 64), "gqa", "gqa h8/kv2"),
        ((512, 8, 1, 64), "mqa", "mqa h8/kv1"),
        ((3072, 16, 16, 256), "mha", "mha h16 d256"),  # Gemma-7B: 16 · 256 ≠ 3072
    ],
)
def test_kind_and_label_follow_from_the_numbers(
    numbers: tuple[int, int, int, int], kind: str, label: str
) -> None:
    layout = HeadLayout(*numbers)
    assert (layout.kind, layout.label) == (kind, label)


@given(d_model=st.integers(1, 256), n_heads=st.integers(1, 64), group=st.integers(1, 8))
def test_a_derived_layout_fills_the_width_or_is_refused(
    d_model: int, n_heads: int, group: int
) -> None:
    if d_model % n_heads:
        with pytest.raises(LayoutError) as error:
            HeadLayout.of(d_model, n_heads)
        message = str(error.value)
        assert "\n" not in message
        assert f"model.n_heads={n_heads}" in message
        assert f"model.d_model={d_model}" in message
        nearest = min(divisors(d_model), key=lambda d: abs(d - n_heads))
        assert str(nearest) in message.split("nearest valid n_heads:")[1]
    else:
        layout = HeadLayout.of(d_model, n_heads)
        assert layout.q_width == d_model
        assert layout.n_params == 4 * d_model**2


@given(
    d_model=st.integers(1, 128),
    n_kv_heads=st.integers(1, 16),
    group=st.integers(1, 16),
    d_head=st.integers(1, 64),
)
def test_a_valid_layout_accounts_for_itself(
    d_model: int, n_kv_heads: int, group: int, d_head: int
) -> None:
    layout = HeadLayout(d_model, n_kv_heads * group, n_kv_heads, d_head)
    assert layout.group_size == group
    assert layout.n_params == d_model * d_head * (2 * layout.n_heads + 2 * n_kv_heads)
    assert layout.kv_bytes_per_token(2) == 4 * n_kv_heads * d_head
    assert HeadLayout.of(d_model, layout.n_heads, n_kv_heads, d_head) == layout


@given(n_heads=st.integers(1, 64), n_kv_heads=st.integers(1, 80))
def test_kv_heads_divide_query_heads_or_are_refused(n_heads: int, n_kv_heads: int) -> None:
    if n_heads % n_kv_heads == 0:
        assert HeadLayout(64, n_heads, n_kv_heads, 8).n_kv_heads == n_kv_heads
        return
    with pytest.raises(LayoutError) as error:
        HeadLayout(64, n_heads, n_kv_heads, 8)
    message = str(error.value)
    assert "\n" not in message
    assert f"model.n_kv_heads={n_kv_heads}" in message
    assert f"model.n_heads={n_heads}" in message
    named = message.split("nearest valid: ")[1].split(" or ")
    assert all(n_heads % int(n) == 0 for n in named)


@pytest.mark.parametrize("key", ["d_model", "n_heads", "n_kv_heads", "d_head"])
@pytest.mark.parametrize("value", [0, -1])
def test_nothing_below_one_is_a_layout(key: str, value: int) -> None:
    numbers = {"d_model": 64, "n_heads": 8, "n_kv_heads": 8, "d_head": 8} | {key: value}
    with pytest.raises(LayoutError, match=f"model.{key}={value}: must be at least 1"):
        HeadLayout(**numbers)


def test_a_zero_never_reaches_a_division() -> None:
    for d_model, n_heads in ((0, 4), (64, 0), (64, -8)):
        with pytest.raises(LayoutError, match="must be at least 1"):
            HeadLayout.of(d_model, n_heads)


@given(st.integers(1, 5000))
def test_divisors(n: int) -> None:
    assert divisors(n) == [k for k in range(1, n + 1) if n % k == 0]
