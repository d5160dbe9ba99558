"""Filling in a request: what it leaves out, by rule, and what its control solves for.

Resolving a resolved configuration changes nothing, so that a saved one replays as it ran.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from headcount.controls import KEY, Matched, match, measure
from headcount.errors import LayoutError, RequestError
from headcount.layout import HeadLayout
from headcount.shape import ModelShape

if TYPE_CHECKING:
    from headcount.config import Config, Matching, Model


def resolved(config: "Config") -> "Config":
    """The request with every `None` of the model filled in and its control applied."""
    model, matching = config.model, config.matching
    if config.control.name == "fixed_d_head":
        model = _with_d_head(model, config.control.d_head)
    if matching is not None and matching.by == "kv_heads" and model.attention == "mqa":
        raise LayoutError(
            "control.by=kv_heads with attention=mqa, which has one; use attention=gqa"
        )
    model = _filled(model, matching is not None and matching.by == "kv_heads")
    config = config.model_copy(update={"model": model})
    return config if matching is None else _with_match(config, matching)


def _with_match(config: "Config", matching: "Matching") -> "Config":
    """Close the reference's open ends, before the control turns them, and apply the control."""
    ends = {
        "d_ff": matching.reference.d_ff or config.model.d_ff,
        "n_layers": matching.reference.n_layers or config.model.n_layers,
    }
    reference = matching.reference.model_copy(update=ends)
    matching = matching.model_copy(update={"reference": reference})
    found = match(
        config.shape,
        reference_shape(config, matching),
        matching.quantity,
        matching.by,
        seq_len=config.task.seq_len,
        multiple=matching.multiple,
        tolerance=matching.tolerance,
    )
    layout = found.shape.layout
    solved = {
        found.key: found.value,
        "n_kv_heads": layout.n_kv_heads,
        "kv_group_size": layout.group_size,
    }
    model = config.model.model_copy(update=solved)
    return config.model_copy(update={"model": model, "control": matching})


def matched(config: "Config") -> Matched | None:
    """What the control of a resolved configuration came to; None where it solves for nothing."""
    matching = config.matching
    if matching is None:
        return None
    amount = measure(matching.quantity, config.task.seq_len)
    target, achieved = amount(reference_shape(config, matching)), amount(config.shape)
    key = KEY[matching.by]
    return Matched(config.shape, key, getattr(config.model, key), target, achieved)


def reference_shape(config: "Config", matching: "Matching") -> ModelShape:
    """The shape that a control compares with: the model's, with the reference's heads and sizes."""
    shape, r = config.shape, matching.reference
    layout = HeadLayout.of(shape.layout.d_model, r.n_heads or 1, r.n_kv_heads, r.d_head)
    return replace(
        shape, layout=layout, d_ff=r.d_ff or shape.d_ff, n_layers=r.n_layers or shape.n_layers
    )


def _with_d_head(model: "Model", d_head: int) -> "Model":
    """The model with the control's width of heads. Raises RequestError for another in the request."""
    if model.d_head not in (None, d_head):
        raise RequestError(
            f"model.d_head={model.d_head} with control=fixed_d_head control.d_head={d_head}; "
            "give one of them"
        )
    return model.model_copy(update={"d_head": d_head})


def _filled(model: "Model", kv_heads_solved: bool) -> "Model":
    """Fill in n_kv_heads, d_head, d_ff and MLA's widths. Afterwards numbers describe the layout."""
    n_kv_heads = _n_kv_heads(model, kv_heads_solved)
    layout = HeadLayout.of(model.d_model, model.n_heads, n_kv_heads, model.d_head)
    d_latent, d_rope = _latent(model, layout.d_head)
    # 8/3 and 4 times d_model give both MLPs the same parameters (Shazeer 2020); rounded up to 8.
    gated = -(-8 * layout.d_model // 24) * 8
    rule = {"swiglu": gated, "geglu": gated, "gelu": 4 * layout.d_model, "none": 1}
    update = {
        "n_kv_heads": layout.n_kv_heads,
        "kv_group_size": layout.group_size,
        "d_head": layout.d_head,
        "d_latent": d_latent,
        "d_rope": d_rope,
        "d_ff": model.d_ff if model.d_ff and model.mlp != "none" else rule[model.mlp],
    }
    return model.model_copy(update=update)


def _latent(model: "Model", d_head: int) -> tuple[int, int] | tuple[None, None]:
    """MLA's d_latent and d_rope by the request or by rule; None, None for every other attention."""
    if model.attention != "mla":
        for key, value in (("d_latent", model.d_latent), ("d_rope", model.d_rope)):
            if value is not None:
                raise LayoutError(
                    f"model.{key}={value} has no effect with attention={model.attention}; "
                    "valid: null, or attention=mla"
                )
        return None, None
    d_latent = 4 * d_head if model.d_latent is None else model.d_latent
    if d_latent < 1:
        raise LayoutError(f"model.d_latent={d_latent}: must be at least 1 with attention=mla")
    by_rule = max(2, d_head // 4 * 2) if model.position == "rope" else 0
    return d_latent, by_rule if model.d_rope is None else model.d_rope


def _n_kv_heads(model: "Model", solved: bool) -> int | None:
    """KV heads by the request: explicit, by group size, or by the kind of attention; `solved`: a
    control finds them, so that they may be left out."""
    n_heads, n_kv_heads, group = model.n_heads, model.n_kv_heads, model.kv_group_size
    if group is not None:
        if group < 1 or n_heads % group:
            raise LayoutError(
                f"model.kv_group_size={group} does not divide model.n_heads={n_heads}; "
                "valid: a divisor of n_heads"
            )
        if n_kv_heads is not None and n_kv_heads * group != n_heads:
            raise LayoutError(
                f"model.n_kv_heads={n_kv_heads} contradicts model.kv_group_size={group} at "
                f"model.n_heads={n_heads}; give one of them, or n_kv_heads={n_heads // group}"
            )
        n_kv_heads = n_heads // group
    if model.attention == "mqa":
        if n_kv_heads not in (None, 1):
            raise LayoutError(
                f"model.n_kv_heads={n_kv_heads} with attention=mqa: valid: 1 (or attention=gqa)"
            )
        return 1
    if model.attention == "gqa" and n_kv_heads is None and not solved:
        raise RequestError("attention=gqa: give model.kv_group_size or model.n_kv_heads")
    return n_kv_heads
