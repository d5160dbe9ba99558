"""Cutting heads out of a model's weights, and making each group's KV heads one.

Weights by the model's own names. The fused projection's rows are all query heads, then all key
heads, then all value heads; the output projection's columns are the query heads.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from headcount.errors import RequestError
from headcount.layout import HeadLayout
from headcount.model import Transformer
from headcount.seeding import generator
from headcount.shape import ModelShape

Pooling = Literal["mean", "first", "random"]
POOLINGS: tuple[Pooling, ...] = ("mean", "first", "random")

Weights = dict[str, Tensor]


def kept_reads(layer: HeadLayout, kept: Sequence[int]) -> list[int]:
    """The KV head that each kept query head reads once those without a reader are gone."""
    left = sorted({layer.kv_of[head] for head in kept})
    return [left.index(layer.kv_of[head]) for head in kept]


def prune(model: Transformer, kept: Sequence[Sequence[int]]) -> Weights:
    """The weights with only these query heads, layer by layer, ascending. A KV head goes when no head
    that reads it is left; a layer without heads keeps its output bias alone. Equal to putting out
    zero for the heads that go, up to rounding. Raises RequestError for MLA, whose heads share one
    latent."""
    refuse_latent(model.shape, "prune")
    weights = dict(model.state_dict())
    for i, (layer, heads) in enumerate(zip(model.shape.layer_layouts, kept, strict=True)):
        name = f"blocks.{i}.attention"
        if not heads:
            _drop_attention(weights, i)
            continue
        kv = sorted({layer.kv_of[head] for head in heads})
        for kind in ("weight", "bias"):
            if f"{name}.qkv.{kind}" in weights:
                q, k, v = _split(weights[f"{name}.qkv.{kind}"], layer)
                parts = (q[list(heads)], k[kv], v[kv])
                weights[f"{name}.qkv.{kind}"] = torch.cat([p.flatten(0, 1) for p in parts])
        out = weights[f"{name}.out.weight"].unflatten(1, (layer.n_heads, layer.d_head))
        weights[f"{name}.out.weight"] = out[:, list(heads)].flatten(1)
    return weights


def convert(model: Transformer, n_kv_heads: int, how: Pooling, seed: int) -> Weights:
    """The weights with fewer KV heads, each for the query heads of several (Ainslie et al. 2023,
    section 2.1): their mean, the first of them, or one drawn anew from `seed` as at initialisation.
    Exact where the KV heads of a group are equal. Raises RequestError where the groups do not fit."""
    check_groups(model.shape, n_kv_heads)
    layout = model.shape.layout
    group = layout.n_kv_heads // n_kv_heads
    weights = dict(model.state_dict())
    for i in range(model.shape.n_layers):
        for kind in ("weight", "bias"):
            name = f"blocks.{i}.attention.qkv.{kind}"
            if name not in weights:
                continue
            q, *kv = _split(weights[name], layout)
            pooled = []
            for which, part in zip("kv", kv, strict=True):
                groups = part.unflatten(0, (n_kv_heads, group))
                if how == "mean":
                    pooled.append(groups.mean(1))
                elif how == "first":
                    pooled.append(groups[:, 0])
                elif kind == "bias":
                    pooled.append(torch.zeros_like(groups[:, 0]))
                else:
                    g = generator(seed, "heads", "random", name, which)
                    std = layout.d_model**-0.5  # as Transformer.initialise draws it
                    pooled.append(torch.randn(groups[:, 0].shape, generator=g) * std)
            weights[name] = torch.cat([part.flatten(0, 1) for part in (q, *pooled)])
    return weights


def check_groups(shape: ModelShape, n_kv_heads: int) -> None:
    """Refuse (RequestError) a number of KV heads that the model's cannot be grouped into."""
    refuse_latent(shape, "uptrain")
    if shape.layers:
        raise RequestError(
            "uptrain: the run's layers differ in heads; valid: a run whose layers are all alike"
        )
    now = shape.layout.n_kv_heads
    if not 1 <= n_kv_heads < now or now % n_kv_heads:
        valid = ", ".join(str(n) for n in range(1, now) if now % n == 0)
        raise RequestError(
            f"model.n_kv_heads={n_kv_heads}: the run has {now} KV head{'s' * (now > 1)}; valid: "
            f"{valid or 'none'}"
        )


def refuse_latent(shape: ModelShape, verb: str) -> None:
    """Refuse (RequestError) MLA, whose heads share one latent."""
    if shape.layout.d_latent:
        raise RequestError(
            f"{verb}: attention=mla, whose heads share one latent; valid: mha, gqa, mqa"
        )


def _split(fused: Tensor, layer: HeadLayout) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value heads of a fused weight or bias, each (heads, d_head, …)."""
    heads = fused.unflatten(0, (layer.n_heads + 2 * layer.n_kv_heads, layer.d_head))
    q, k, v = heads.split([layer.n_heads, layer.n_kv_heads, layer.n_kv_heads])
    return q, k, v


def _drop_attention(weights: Weights, layer: int) -> None:
    """Leave of a layer's attention what acts without heads."""
    bias = weights.get(f"blocks.{layer}.attention.out.bias")
    for name in [n for n in weights if n.startswith(f"blocks.{layer}.attention")]:
        del weights[name]
    if bias is not None:
        weights[f"blocks.{layer}.attention.bias"] = bias
