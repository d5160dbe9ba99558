"""The page's figures: plotly.js specifications as plain dictionaries.

The page draws them in the reader's light or dark colours, so no background, font or grid colour
stands here.
"""

from collections.abc import Callable
from math import isfinite, isnan
from typing import Any

import numpy as np

from headcount.analysis.arms import Arm, grouping
from headcount.analysis.charts import Chart
from headcount.analysis.evidence import Evidence
from headcount.analysis.figures import decode_spread, possible_fronts
from headcount.analysis.pareto import front
from headcount.analysis.statistics import Array
from headcount.analysis.style import looks, round_ticks, short_label
from headcount.analysis.uncertainty import Fronts
from headcount.analysis.verdicts import Judgement
from headcount.analysis.words import bytes_text, count, millis, plus_minus, signed

Spec = dict[str, Any]
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


def figures(
    evidence: Evidence, judgement: Judgement, fronts: Fronts, charts: list[Chart]
) -> dict[str, Spec]:
    """The specifications of one condition, by the stems of `figures.pictures`."""
    arms = [a for a in evidence.arms_of(judgement.condition) if len(a.values)]
    if not arms:
        return {}
    specs = {"quality_vs_heads": _quality_vs_heads(arms, judgement)}
    if len(arms) > 1 and judgement.df:
        specs["difference_from_reference"] = _differences(judgement)
    timed = [a for a in arms if a.decode]
    if timed:
        specs["quality_vs_decode_latency"] = _trade_off(
            timed,
            judgement,
            decode_spread,
            "Decode latency (ms per step, median)",
            [f"on this front in {fronts.of(a)[0]:.0%} of draws" for a in timed],
            possible_fronts(fronts, judgement, fronts.draws.latency),
        )
    cached = [a for a in arms if a.cost]
    if cached:
        specs["quality_vs_kv_bytes"] = _trade_off(
            cached,
            judgement,
            lambda a: (a.kv_bytes, a.kv_bytes, a.kv_bytes),
            "KV cache (bytes per token, all layers)",
            [f"on this front in {fronts.of(a)[1]:.0%} of draws" for a in cached],
            possible_fronts(
                fronts, judgement, np.broadcast_to(fronts.kv_bytes, fronts.draws.quality.shape)
            ),
            in_bytes=True,
        )
    return specs | {chart.stem: _lines(chart) for chart in charts}


def hover(arm: Arm, judgement: Judgement) -> str:
    """What a point tells under the pointer."""
    comparison = judgement.of(arm)
    metric = judgement.metric
    value = plus_minus(arm.mean, judgement.bar(arm) or float("inf"))
    seeds = count(len(arm.seeds), "seed")
    measured = f"{metric.name} {value} {metric.unit}".rstrip()
    lines = [f"<b>{arm.label}</b>", f"{measured} ({seeds})"]
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


def _bars(arms: list[Arm], judgement: Judgement) -> Spec:
    return {"type": "data", "array": [judgement.bar(a) for a in arms], "thickness": 1.2, "width": 3}


def _quality_vs_heads(arms: list[Arm], judgement: Judgement) -> Spec:
    heads = sorted({a.layout.mean_heads for a in arms})
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
                "x": [a.layout.mean_heads * shift for a in line],
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
                "x": [a.layout.mean_heads * shift * 1.05 for a, _, _ in seeds],
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
            "ticktext": [f"{h:g}" for h in heads],
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
        "xaxis": {
            "zeroline": True,
            "title": {"text": f"Δ {metric.name}{unit} from {reference}; {better} is better"},
        },
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
    chances: list[str],
    possible: list[Array],
    in_bytes: bool = False,
) -> Spec:
    sign = judgement.metric.sign
    points = np.array([[cost(a)[0], sign * a.mean] for a in arms])
    on_front = front(points)
    corners = points[on_front][np.argsort(points[on_front][:, 0])]
    end = float(points[:, 0].max()) * 1.15
    # One trace for all possible fronts; a gap parts them.
    faint: list[list[float | None]] = [[], []]
    for draw in possible:
        faint[0] += [*draw[:, 0].tolist(), end, None]
        faint[1] += [*draw[:, 1].tolist(), float(draw[-1, 1]), None]
    traces: list[Spec] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "possible fronts",
            "x": faint[0],
            "y": faint[1],
            "opacity": 0.15,
            "line": {"shape": "hv", "width": 1, "color": "#888888"},
            "hoverinfo": "skip",
            "visible": bool(possible),
            "showlegend": bool(possible),
        },
        {
            "type": "scatter",
            "mode": "lines",
            "name": "front of the means",
            "x": [*corners[:, 0].tolist(), end],
            "y": [*(sign * corners[:, 1]).tolist(), float(sign * corners[-1, 1])],
            "line": {"shape": "hv", "dash": "dash", "width": 1.2, "color": "#888888"},
            "hoverinfo": "skip",
        },
    ]
    ends = np.log([cost(a) for a in arms])
    texts = _joined_labels(points, arms, float(np.ptp(ends)))
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
                "text": [texts[i] for i, _ in group],
                "textposition": "top right",
                "textfont": {"size": 11},
                "hovertext": [f"{hover(a, judgement)}<br>{chances[i]}" for i, a in group],
                "hoverinfo": "text",
            }
        )
    axis: Spec = {"type": "log", "title": {"text": label}}
    distinct = sorted({float(x) for x in points[:, 0]})
    if in_bytes:
        axis |= {"tickvals": distinct, "ticktext": [bytes_text(x) for x in distinct]}
    else:
        ticks = round_ticks(distinct[0], distinct[-1])
        axis |= {"tickvals": ticks, "ticktext": [f"{t:g}" for t in ticks]}
    return {
        "data": traces,
        "layout": {"xaxis": axis, "yaxis": {"title": {"text": judgement.metric.axis}}},
    }


def _joined_labels(points: Array, arms: list[Arm], width: float, near: float = 0.04) -> list[str]:
    """A label beside each point; points too near to each other to have one each share the first's.

    points: (arms, 2), cost and quality. width: of the axis of costs, in their logarithm. near: as a
    share of each axis.
    """
    spans = np.array([width or 1, np.ptp(points[:, 1]) or 1])
    places = np.stack([np.log(points[:, 0]), points[:, 1]], axis=1) / spans
    shared: dict[int, list[str]] = {}
    for i, arm in enumerate(arms):
        host = next((j for j in shared if (abs(places[i] - places[j]) < near).all()), i)
        shared.setdefault(host, []).append(short_label(arm))
    most = 4
    return [
        ", ".join(names[:most]) + (f" +{len(names) - most}" if len(names) > most else "")
        if (names := shared.get(i))
        else ""
        for i in range(len(arms))
    ]


def _lines(chart: Chart) -> Spec:
    """A chart of lines; a spread is a band, or bars."""
    traces: list[Spec] = []
    for series in chart.series:
        colour = series.colour
        if chart.band and series.low:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "none",
                    "x": [*series.x, *reversed(series.x)],
                    "y": [*series.high, *reversed(series.low)],
                    "fill": "toself",
                    "fillcolor": f"rgba({','.join(str(c) for c in _rgb(colour))},0.15)",
                    "legendgroup": series.name,
                    "showlegend": False,
                    "hoverinfo": "skip",
                }
            )
        trace: Spec = {
            "type": "scatter",
            "mode": "markers" if chart.x_names else "lines+markers",
            "name": series.name,
            "legendgroup": series.name,
            "x": series.x,
            "y": [None if isnan(y) else y for y in series.y],
            "line": {"color": colour, "dash": DASHES[series.dash % len(DASHES)], "width": 1.6},
            "marker": {"symbol": series.look.symbol, "size": 6, "color": colour},
            "text": series.text,
            "hoverinfo": "text",
        }
        if series.low and not chart.band:
            y, low, high = np.nan_to_num(np.array([series.y, series.low, series.high]))
            trace["error_y"] = {
                "type": "data",
                "symmetric": False,
                "array": (high - y).tolist(),
                "arrayminus": (y - low).tolist(),
                "thickness": 1,
                "width": 0,
            }
        traces.append(trace)
    x_axis: Spec = {"title": {"text": chart.x_title}}
    y_axis: Spec = {"title": {"text": chart.y_title}}
    if chart.x_names:
        x_axis |= {"tickvals": list(range(len(chart.x_names))), "ticktext": list(chart.x_names)}
    elif chart.x_log:
        x_axis |= {"type": "log", "tickvals": chart.x_ticks}
        x_axis |= {"ticktext": [chart.x_text(x) for x in chart.x_ticks]}
    if chart.y_log:
        y_axis |= {"type": "log", "tickvals": chart.y_ticks}
        y_axis |= {"ticktext": [chart.y_text(y) for y in chart.y_ticks]}
    elif chart.y_top is not None:
        low = min(y for s in chart.series for y in s.low)
        y_axis |= {"range": [low - 0.05 * (chart.y_top - low), chart.y_top]}
    if chart.zero:
        y_axis |= {"zeroline": True}
    return {"data": traces, "layout": {"xaxis": x_axis, "yaxis": y_axis}}


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
