"""The page's figures: plotly.js specifications as plain dictionaries.

The page draws them in the reader's light or dark colours, so no background, font or grid colour
stands here.
"""

from collections.abc import Callable
from math import floor, isfinite, log10
from typing import Any

import numpy as np

from headcount.analysis.evidence import Arm, Evidence, grouping
from headcount.analysis.pareto import front
from headcount.analysis.style import looks, short_label
from headcount.analysis.verdicts import Judgement
from headcount.analysis.words import bytes_text, count, millis, plus_minus, signed

Spec = dict[str, Any]


def figures(evidence: Evidence, judgement: Judgement) -> dict[str, Spec]:
    """The specifications of one condition, by the names that `figures.draw` gives its pictures."""
    arms = [a for a in evidence.arms_of(judgement.condition) if len(a.values)]
    if not arms:
        return {}
    specs = {"quality_vs_heads": _quality_vs_heads(arms, judgement)}
    if len(arms) > 1 and judgement.df:
        specs["difference_from_reference"] = _differences(judgement)
    timed = [a for a in arms if isfinite(a.decode_ms)]
    if timed:
        specs["quality_vs_decode_latency"] = _trade_off(
            timed, judgement, _decode_spread, "Decode latency (ms per step, median)", ""
        )
    cached = [a for a in arms if isfinite(a.kv_bytes)]
    if cached:
        specs["quality_vs_kv_bytes"] = _trade_off(
            cached,
            judgement,
            lambda a: (a.kv_bytes, a.kv_bytes, a.kv_bytes),
            "KV cache (bytes per token, all layers)",
            "B",
        )
    return specs


def hover(arm: Arm, judgement: Judgement) -> str:
    """What a point tells under the pointer."""
    comparison = judgement.of(arm)
    metric = judgement.metric
    value = plus_minus(arm.mean, judgement.bar(arm) or float("inf"))
    lines = [f"<b>{arm.label}</b>", f"{metric.name} {value} ({count(len(arm.seeds), 'seed')})"]
    if comparison.verdict not in ("reference", "no data"):
        difference = comparison.difference
        lines.append(f"Δ {signed(difference.estimate, difference.half_width)}: {comparison.words}")
    else:
        lines.append(comparison.words)
    if isfinite(arm.decode_ms):
        lines.append(f"decode {millis(arm.decode_ms)} ms, KV {bytes_text(arm.kv_bytes)} per token")
    if arm.n_params:
        lines.append(f"{arm.n_params:,} parameters")
    return "<br>".join(lines)


def _decode_spread(arm: Arm) -> tuple[float, float, float]:
    assert arm.decode
    low, high = np.quantile(arm.decode.samples_ms, [0.1, 0.9])
    return arm.decode_ms, float(low), float(high)


def _bars(arms: list[Arm], judgement: Judgement) -> Spec:
    return {"type": "data", "array": [judgement.bar(a) for a in arms], "thickness": 1.2, "width": 3}


def _quality_vs_heads(arms: list[Arm], judgement: Judgement) -> Spec:
    heads = sorted({a.layout.n_heads for a in arms})
    styles = looks(arms)
    traces: list[Spec] = []
    for place, (name, look) in enumerate(styles.items()):
        line = [a for a in arms if grouping(a.layout)[1] == name]
        shift = 2 ** (0.07 * (place - (len(styles) - 1) / 2))
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": name,
                "legendgroup": name,
                "x": [a.layout.n_heads * shift for a in line],
                "y": [a.mean for a in line],
                "error_y": _bars(line, judgement),
                "marker": {"symbol": look.symbol, "size": 8, "color": look.colour},
                "line": {"color": look.colour, "width": 1.6},
                "text": [hover(a, judgement) for a in line],
                "hoverinfo": "text",
            }
        )
        seeds = [(a, s, v) for a in line for s, v in zip(a.seeds, a.values.tolist(), strict=True)]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": f"{name}, single seeds",
                "legendgroup": name,
                "showlegend": False,
                "x": [a.layout.n_heads * shift * 1.05 for a, _, _ in seeds],
                "y": [v for _, _, v in seeds],
                "marker": {"size": 4, "color": look.colour, "opacity": 0.5},
                "text": [f"{a.label}, seed {s}: {v:.4f}" for a, s, v in seeds],
                "hoverinfo": "text",
            }
        )
    layout = {
        "xaxis": {
            "type": "log",
            "title": {"text": "Query heads per layer"},
            "tickvals": heads,
            "ticktext": [str(h) for h in heads],
        },
        "yaxis": {"title": {"text": judgement.metric.axis}},
    }
    return {"data": traces, "layout": layout}


def _differences(judgement: Judgement) -> Spec:
    shown = [c for c in judgement.comparisons if c.n_pairs]
    styles = looks([c.arm for c in shown])
    traces: list[Spec] = []
    for name, look in styles.items():
        group = [c for c in shown if grouping(c.arm.layout)[1] == name]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": [c.difference.estimate for c in group],
                "y": [c.arm.label for c in group],
                "error_x": {
                    "type": "data",
                    "array": [c.difference.half_width for c in group],
                    "thickness": 1.2,
                    "width": 3,
                },
                "marker": {
                    "symbol": [
                        look.symbol + ("-open" if c.verdict == "undecided" else "") for c in group
                    ],
                    "size": 9,
                    "color": look.colour,
                },
                "text": [hover(c.arm, judgement) for c in group],
                "hoverinfo": "text",
            }
        )
    metric = judgement.metric
    unit = f" ({metric.unit})" if metric.unit else ""
    band = {
        "type": "rect",
        "yref": "paper",
        "x0": -judgement.margin,
        "x1": judgement.margin,
        "y0": 0,
        "y1": 1,
        "line": {"width": 0},
        "fillcolor": "rgba(128,128,128,0.15)",
        "layer": "below",
    }
    reference = judgement.reference.label if judgement.reference else ""
    better = "left" if metric.sign > 0 else "right"
    layout = {
        "xaxis": {"title": {"text": f"Δ {metric.name}{unit} from {reference}; {better} is better"}},
        "yaxis": {
            "type": "category",
            "categoryorder": "array",
            "categoryarray": [c.arm.label for c in reversed(shown)],
            "automargin": True,
        },
        "shapes": [band],
        "height": 120 + 26 * len(shown),
    }
    return {"data": traces, "layout": layout}


def _trade_off(
    arms: list[Arm],
    judgement: Judgement,
    cost: Callable[[Arm], tuple[float, float, float]],
    label: str,
    suffix: str,
) -> Spec:
    sign = judgement.metric.sign
    points = np.array([[cost(a)[0], sign * a.mean] for a in arms])
    on_front = front(points)
    corners = points[on_front][np.argsort(points[on_front][:, 0])]
    end = float(points[:, 0].max()) * 1.15
    traces: list[Spec] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "front of the means",
            "x": [*corners[:, 0].tolist(), end],
            "y": [*(sign * corners[:, 1]).tolist(), float(sign * corners[-1, 1])],
            "line": {"shape": "hv", "dash": "dash", "width": 1.2, "color": "#888888"},
            "hoverinfo": "skip",
        }
    ]
    for name, look in looks(arms).items():
        group = [(i, a) for i, a in enumerate(arms) if grouping(a.layout)[1] == name]
        spread = [cost(a) for _, a in group]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers+text" if len(arms) <= 24 else "markers",
                "name": name,
                "x": [median for median, _, _ in spread],
                "y": [a.mean for _, a in group],
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": [high - median for median, _, high in spread],
                    "arrayminus": [median - low for median, low, _ in spread],
                    "thickness": 1,
                    "width": 0,
                },
                "error_y": _bars([a for _, a in group], judgement) | {"width": 0, "thickness": 1},
                "marker": {
                    "symbol": [look.symbol + ("" if on_front[i] else "-open") for i, _ in group],
                    "size": 9,
                    "color": look.colour,
                },
                "text": [short_label(a) for _, a in group],
                "textposition": "top right",
                "textfont": {"size": 11},
                "hovertext": [
                    hover(a, judgement) + ("<br>on the front" if on_front[i] else "")
                    for i, a in group
                ],
                "hoverinfo": "text",
            }
        )
    axis: Spec = {"type": "log", "title": {"text": label}}
    distinct = sorted({float(x) for x in points[:, 0]})
    if suffix:
        axis |= {"tickvals": distinct, "ticktext": [bytes_text(x) for x in distinct]}
    else:
        ticks = round_ticks(distinct[0], distinct[-1])
        axis |= {"tickvals": ticks, "ticktext": [f"{t:g}" for t in ticks]}
    return {
        "data": traces,
        "layout": {"xaxis": axis, "yaxis": {"title": {"text": judgement.metric.axis}}},
    }


def round_ticks(low: float, high: float) -> list[float]:
    """Round numbers for a logarithmic axis from `low` to `high`, a little beyond on both sides."""
    steps = (1, 2, 5) if high / low > 8 else (1, 1.5, 2, 3, 4, 5, 6, 8)
    decades = range(floor(log10(low)) - 1, floor(log10(high)) + 2)
    ticks = [step * 10.0**decade for decade in decades for step in steps]
    return [t for t in ticks if low / 1.3 <= t <= high * 1.3]
