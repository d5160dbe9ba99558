"""Controls: the published matchings, the refusals, and what a request resolves to."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headcount.config import Config, parse
from headcount.controls import Dial, Quantity, match, matched_d_ff, measure
from headcount.errors import LayoutError, RequestError
from headcount.layout import HeadLayout
from headcount.measure.record import run_layout_record
from tests.model.shapes import small_shape

SHAZEER = small_shape(
    HeadLayout(1024, 8, 8, 128), n_layers=6, d_ff=8192, mlp="gelu", n_inputs=32000, n_outputs=32000
)
WIDTH_128 = [(1, 128), (2, 64), (4, 32), (8, 16)]


def widened(layout: HeadLayout) -> int:
    shape = replace(SHAZEER, layout=layout)
    found = match(shape, SHAZEER, "params", "ffn", seq_len=128)
    assert found.residual == 0
    return found.value


def test_shazeer_s_language_model() -> None:
    """Shazeer 2019 (arXiv 1911.02150), Table 3: from d_ff 8192, MQA is widened to 9088 and every
    multi-head layout of total width 128 to 9984; the parameters are equal to the last one."""
    assert widened(HeadLayout(1024, 8, 1, 128)) == 9088
    assert [widened(HeadLayout(1024, h, h, d)) for h, d in WIDTH_128] == [9984] * 4


def test_shazeer_s_translation_model() -> None:
    """Likewise, Table 1: an encoder-decoder has 1.5 attention blocks for each FFN; from d_ff 4096 to
    5440 and 6784."""
    baseline = HeadLayout(1024, 8, 8, 128)

    def d_ff(layout: HeadLayout) -> Fraction:
        return matched_d_ff(4096, baseline, layout, attention_per_mlp=Fraction(3, 2))

    assert d_ff(HeadLayout(1024, 8, 1, 128)) == 5440
    assert [d_ff(HeadLayout(1024, h, h, d)) for h, d in WIDTH_128] == [6784] * 4


def test_more_query_heads_instead() -> None:
    """Zadouri 2025, parameter matching by query heads at 183M: MHA 12, GQA-4 20, MQA 23 heads."""
    reference = small_shape(HeadLayout(768, 12, 12, 64))
    for n_kv_heads, n_heads in ((12, 12), (4, 20), (1, 23)):
        start = replace(reference, layout=HeadLayout(768, 12, n_kv_heads, 64))
        found = match(start, reference, "params", "heads", seq_len=128)
        assert (found.value, found.residual) == (n_heads, 0)
        assert found.shape.layout == HeadLayout(768, n_heads, n_kv_heads, 64)


@given(
    n_heads=st.sampled_from([1, 2, 4, 8, 16]),
    group=st.sampled_from([1, 2, 4]),
    d_head=st.integers(1, 16).map(lambda n: 2 * n),
    multiple=st.sampled_from([1, 8, 64]),
    quantity=st.sampled_from(["params", "flops"]),
    by=st.sampled_from(["ffn", "heads", "depth"]),
)
def test_no_setting_of_the_dial_is_nearer(
    n_heads: int, group: int, d_head: int, multiple: int, quantity: Quantity, by: Dial
) -> None:
    reference = small_shape(HeadLayout(64, 4, 4, 16), d_ff=256, n_layers=4)
    layout = HeadLayout(64, n_heads * group, n_heads, d_head)
    shape = replace(reference, layout=layout)
    amount = measure(quantity, 32)
    found = match(shape, reference, quantity, by, seq_len=32, multiple=multiple, tolerance=1e9)
    assert found.target == amount(reference)
    assert found.achieved == amount(found.shape)
    step = {"ffn": multiple, "heads": layout.n_kv_heads, "depth": 1}[by]
    assert found.value % step == 0
    for other in (found.value - step, found.value + step):
        if other < 1:
            continue
        turned = {
            "ffn": lambda n: replace(found.shape, d_ff=n),
            "depth": lambda n: replace(found.shape, n_layers=n),
            "heads": lambda n: replace(found.shape, layout=replace(layout, n_heads=n)),
        }[by](other)
        assert abs(amount(turned) - found.target) >= abs(found.achieved - found.target)


@pytest.mark.parametrize(
    ("layout", "by", "value"),
    [
        (HeadLayout(64, 16, 16, 8), "kv_heads", 4),  # twice as many KV heads, half as wide
        (HeadLayout(64, 8, 1, 8), "d_head", 32),
        (HeadLayout(64, 8, 8, 8, d_latent=99, d_rope=16), "latent", 48),
    ],
    ids=["kv_heads", "d_head", "latent"],
)
def test_an_equal_cache(layout: HeadLayout, by: Dial, value: int) -> None:
    """The reference caches 2 KV heads of 16, keys and values: 64 elements a token and layer."""
    reference = small_shape(HeadLayout(64, 4, 2, 16))
    found = match(replace(reference, layout=layout), reference, "kv_bytes", by, seq_len=8)
    assert (found.value, found.residual) == (value, 0)


def test_what_cannot_be_met_is_refused_with_what_would_be() -> None:
    reference = small_shape(HeadLayout(64, 4, 4, 16), n_layers=2)
    wide = replace(reference, layout=HeadLayout(64, 64, 64, 16))
    with pytest.raises(LayoutError, match=r"control.by=depth: the nearest model.n_layers=1 ") as e:
        match(wide, reference, "params", "depth", seq_len=8, tolerance=0.02)
    assert "control.tolerance of at least" in str(e.value)
    assert "\n" not in str(e.value)
    bare = small_shape(mlp="none")
    with pytest.raises(LayoutError, match=r"by=ffn: model.d_ff does nothing to parameters"):
        match(bare, bare, "params", "ffn", seq_len=8)


# -- requests -------------------------------------------------------------------------------------


def request(model: dict[str, Any], control: dict[str, Any]) -> dict[str, Any]:
    """A composed request for a small model on the novel."""
    return {
        "study": "s",
        "seed": 0,
        "model": {
            "d_model": 64,
            "n_layers": 2,
            "n_heads": 4,
            "mlp": "swiglu",
            "position": "rope",
            "norm": "rmsnorm",
            "dropout": 0.0,
            "tie_embeddings": False,
            "backend": "sdpa",
            **model,
        },
        "task": {
            "name": "moby_dick",
            "batch_size": 8,
            "seq_len": 64,
            "eval_batch_size": 8,
            "eval_tokens": 512,
        },
        "control": control,
        "optim": {
            "lr": 1e-3,
            "weight_decay": 0.0,
            "beta1": 0.9,
            "beta2": 0.95,
            "warmup_steps": 0,
            "min_lr_ratio": 0.1,
            "grad_clip": 1.0,
        },
        "trainer": {
            "max_steps": 10,
            "accumulate_grad_batches": 1,
            "val_every_steps": 5,
            "precision": "32-true",
            "accelerator": "cpu",
            "devices": 1,
            "strategy": "auto",
            "threads": 1,
        },
        "measure": {
            "contexts": [8],
            "batch_sizes": [1],
            "dtype": "fp32",
            "device": "cpu",
            "repeats": 3,
            "warmup": 1,
            "threads": 1,
        },
        "account": {"dtype": "fp32"},
        "logger": {"name": "none"},
        "paths": {"results": "results"},
    }


MQA = {"attention": "mqa"}
CONTROLS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (MQA, {"name": "iso_params"}),
    (MQA, {"name": "iso_params", "by": "heads"}),
    (MQA, {"name": "iso_params", "by": "depth", "tolerance": 0.3}),
    (MQA, {"name": "iso_flops"}),
    (
        {"attention": "gqa", "n_heads": 8},
        {"name": "iso_kv_bytes", "reference": {"n_heads": 4, "n_kv_heads": 2}},
    ),
    ({"attention": "mla"}, {"name": "iso_kv_bytes", "by": "latent"}),
    ({"attention": "mla"}, {"name": "iso_params"}),
    ({"n_heads": 8}, {"name": "fixed_d_head", "d_head": 16}),
    ({}, {"name": "fixed_d_model"}),
]


@pytest.mark.parametrize(("model", "control"), CONTROLS)
def test_a_resolved_request_resolves_to_itself(
    model: dict[str, Any], control: dict[str, Any]
) -> None:
    config = parse(request(model, control))
    assert parse(config.model_dump(mode="json")) == config


def test_parameters_are_made_up_for_in_the_ffn() -> None:
    """MHA of any head count has the reference's parameters; MQA gets the freed ones back."""
    plain = {n: parse(request({"n_heads": n}, {"name": "iso_params"})) for n in (1, 4, 8)}
    assert {c.shape.n_params for c in plain.values()} == {plain[1].matched.target}  # type: ignore[union-attr]
    config = parse(request({**MQA, "n_heads": 8}, {"name": "iso_params"}))
    found = config.matched
    assert found is not None
    assert found.key == "d_ff"
    assert found.value == config.model.d_ff
    assert config.model.d_ff is not None
    assert config.model.d_ff % 8 == 0
    assert config.model.d_ff > plain[8].model.d_ff  # type: ignore[operator]
    assert found.achieved == config.shape.n_params
    assert abs(found.residual) <= 0.02
    assert found.residual == (found.achieved - found.target) / found.target


def test_flops_are_matched_where_the_task_is_long() -> None:
    config = parse(request(MQA, {"name": "iso_flops"}))
    found = config.matched
    assert found is not None
    assert found.achieved == config.shape.forward_flops(64)
    assert abs(found.residual) <= 0.02


def test_fixed_d_head_widens_attention_and_nothing_else() -> None:
    for n_heads in (1, 4, 8, 12):
        config = parse(request({"n_heads": n_heads}, {"name": "fixed_d_head", "d_head": 16}))
        assert config.layout == HeadLayout(64, n_heads, n_heads, 16)
        assert config.matched is None


@pytest.mark.parametrize(
    ("model", "control", "message"),
    [
        (
            {"d_head": 8},
            {"name": "fixed_d_head", "d_head": 16},
            "model.d_head=8 with control=fixed_d_head",
        ),
        (MQA, {"name": "iso_kv_bytes"}, "control.by=kv_heads with attention=mqa"),
        (MQA, {"name": "iso_params", "by": "depth"}, "valid: control.tolerance of at least"),
        (MQA, {"name": "iso_params", "by": "kv_heads"}, "control.by=kv_heads: "),
        (
            MQA,
            {"name": "iso_params", "bye": "ffn"},
            "control.bye=ffn: unknown key; did you mean control.by?",
        ),
        (MQA, {"name": "iso_parms"}, "control.*iso_parms"),
        ({}, {"name": "iso_params", "reference": {"n_heads": 5}}, "n_heads=5 does not divide"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_control_is_one_line(
    model: dict[str, Any], control: dict[str, Any], message: str
) -> None:
    with pytest.raises(RequestError, match=message) as error:
        parse(request(model, control))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"n_heads": 64}, "model.d_head=1 .* nearest valid d_head: 2"),
        ({"attention": "mla", "d_rope": 3}, "model.d_rope=3 .* nearest valid d_rope: 2 or 4"),
        ({"attention": "mla", "d_latent": 0}, "model.d_latent=0: must be at least 1"),
        ({"d_latent": 8}, "model.d_latent=8 has no effect with attention=mha"),
        ({"backend": "torch_mha"}, "model.backend=torch_mha .* model.position=rope"),
        ({"bias": "all"}, "model.bias=all with model.norm=rmsnorm"),
        ({"vocab_size": 100}, "model.vocab_size=100: task=moby_dick has 256 symbols"),
        ({"position": "learned", "max_len": 8}, "model.max_len=8 is shorter than task.seq_len=64"),
        ({"backend": "flex", "attention_dropout": 0.1}, "model.attention_dropout=0.1 with .*flex"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_impossible_model_is_one_line(model: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message) as error:
        parse(request(model, {"name": "fixed_d_model"}))
    assert "\n" not in str(error.value)


def test_kv_heads_need_not_be_given_where_they_are_solved_for() -> None:
    config: Config = parse(
        request(
            {"attention": "gqa", "n_heads": 16, "d_head": 8},
            {"name": "iso_kv_bytes", "reference": {"n_heads": 4, "n_kv_heads": 1}},
        )
    )
    assert config.layout == HeadLayout(64, 16, 2, 8)  # one KV head of 16, or two of 8


def test_a_run_s_record_says_what_its_control_came_to() -> None:
    config = parse(request(MQA, {"name": "iso_params"}))
    noted = run_layout_record(config).matched
    assert noted is not None
    assert (noted.control, noted.key, noted.value) == ("iso_params", "d_ff", config.model.d_ff)
    assert noted.achieved == config.shape.n_params
    assert run_layout_record(parse(request(MQA, {"name": "fixed_d_model"}))).matched is None
