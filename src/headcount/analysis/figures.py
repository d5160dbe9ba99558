"""The pictures of a study as PNG and SVG files, sized for one column of a paper.

Each has axes with units, the spread drawn, and a last line that says under which conditions its
figures were taken. Colours and markers are `style.looks`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headcount.analysis.arms import Arm, grouping
from headcount.analysis.charts import Chart, training_note
from headcount.analysis.evidence import Evidence
from headcount.analysis.pareto import front
from headcount.analysis.statistics import Array
from headcount.analysis.style import Look, looks, short_label
from headcount.analysis.uncertainty import Fronts
from headcount.analysis.verdicts import Judgement
from headcount.analysis.words import bytes_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 3.5, 2.9  # inches: one column
RULES: dict[str, Any] = {
    "font.size": 8,
    "font.family": "sans-serif",
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 6.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.linewidth": 0.4,
    "grid.color": "#dddddd",
    "axes.axisbelow": True,
    "lines.linewidth": 1.1,
    "lines.markersize": 4.5,
    "savefig.dpi": 300,
    "svg.fonttype": "none",
}
GREY = "#666666"
LABEL_SIZE = 6
NEAR = ((4, 5), (-4, -5), (4, -5), (-4, 5), (4, 0), (-4, 0), (0, 7), (0, -7))
"""Places of a label around its point, in the order in which they are tried; points."""
NO_DATE: dict[str, Any] = {"png": {}, "svg": {"Date": None}}  # the same records, the same file
DASHES = ("-", "--", ":", "-.", (0, (5, 1)), (0, (1, 1)), (0, (3, 1, 1, 1, 1, 1)))


STEMS = {
    "quality_vs_heads",
    "difference_from_reference",
    "quality_vs_decode_latency",
    "quality_vs_kv_bytes",
    "decode_latency_vs_context",
    "prefill_latency_vs_context",
    "kv_cache_vs_context_and_batch",
    "learning_curves",
    "lr_sensitivity",
    "slices",
}
"""Every picture there is, so that a report knows its own files."""

Labels = list[tuple[float, float, str]]
"""Texts and the points beside which they stand, in the axes' units."""


@dataclass(frozen=True)
class Picture:
    """A picture: what it shows, what has to be said under it, and how to paint it."""

    stem: str
    """Name of its files."""
    title: str
    definition: str
    note: str
    """The small line inside the picture: where its figures were taken."""
    paint: Callable[["Axes"], Labels]
    """Draws into the axes; returns labels to write beside points once these lie where they stay."""


def pictures(
    evidence: Evidence, judgement: Judgement, fronts: Fronts, charts: list[Chart]
) -> list[Picture]:
    """The pictures of one condition that its records allow, in reading order."""
    arms = [a for a in evidence.arms_of(judgement.condition) if len(a.values)]
    if not arms:
        return []
    metric, trained = judgement.metric, training_note(evidence, judgement)
    bar = (
        "Vertical bar: 95% interval for comparing layouts, with what a seed does to all of them "
        "taken out and the spread pooled (Loftus and Masson 1994), or the layout's own where it varies "
        "far more."
        if judgement.df
        else "No bar: too few seeds to tell the spread."
    )
    on_front = (
        "Filled: on the front of the means, no other layout is as good in both. Faint lines: fronts "
        "that seeds and timings leave possible."
        if judgement.df
        else "Filled: on the front, no other layout is as good in both."
    )
    found = [
        Picture(
            "quality_vs_heads",
            f"{metric.name.capitalize()} against the number of heads",
            f"Mean {metric.name} over seeds; small dots are single seeds; one line for each way of "
            f"sharing KV heads. {bar}",
            trained,
            lambda axes: _quality_vs_heads(axes, arms, judgement),
        )
    ]
    if len(arms) > 1 and judgement.df:
        found.append(
            Picture(
                "difference_from_reference",
                f"Difference in {metric.name} from {_name(judgement)}",
                "Mean difference within a seed (same batches) and its 95% t interval; the band is "
                f"the equivalence margin, ±{judgement.margin:g} {metric.unit}".rstrip()
                + ".",
                trained,
                lambda axes: _differences(axes, judgement),
            )
        )
    timed = [a for a in arms if a.decode]
    if timed:
        found.append(
            Picture(
                "quality_vs_decode_latency",
                f"{metric.name.capitalize()} against decode latency",
                "Median time of one decode step, bar from the 10th to the 90th percentile; "
                f"{evidence.cost_setup}. {on_front} {bar}",
                f"{evidence.cost_setup}\n{trained}",
                lambda axes: _trade_off(
                    axes,
                    timed,
                    judgement,
                    decode_spread,
                    "Decode latency (ms per step, p50; bar p10–p90)",
                    possible_fronts(fronts, judgement, fronts.draws.latency),
                ),
            )
        )
    cached = [a for a in arms if a.cost]
    if cached:
        dtype = " / ".join(sorted({a.cost.dtype for a in cached if a.cost}))
        found.append(
            Picture(
                "quality_vs_kv_bytes",
                f"{metric.name.capitalize()} against KV cache",
                f"KV-cache bytes per token of one sequence over all layers, {dtype}, read off the "
                f"live cache. {on_front} {bar}",
                trained,
                lambda axes: _trade_off(
                    axes,
                    cached,
                    judgement,
                    lambda a: (a.kv_bytes, a.kv_bytes, a.kv_bytes),
                    f"KV cache (bytes per token, all layers, {dtype})",
                    possible_fronts(
                        fronts,
                        judgement,
                        np.broadcast_to(fronts.kv_bytes, fronts.draws.quality.shape),
                    ),
                ),
            )
        )
    found += [
        Picture(
            chart.stem,
            chart.title,
            chart.definition,
            chart.note,
            lambda axes, chart=chart: _lines(axes, chart),  # type: ignore[misc]
        )
        for chart in charts
    ]
    return found


def write(picture: Picture, folder: Path) -> list[Path]:
    """Write `<stem>.png` and `<stem>.svg` into the folder; returns their paths."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.use("agg")
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(RULES):  # type: ignore[arg-type]
        figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
        axes = figure.add_subplot()
        labels = picture.paint(axes)
        figure.supxlabel(picture.note, fontsize=5.5, color=GREY)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # laid out once, for both files
        _label_points(axes, labels)
        paths = [folder / f"{picture.stem}.{kind}" for kind in NO_DATE]
        for path, metadata in zip(paths, NO_DATE.values(), strict=True):
            figure.savefig(path, metadata=metadata)
    return paths


def decode_spread(arm: Arm) -> tuple[float, float, float]:
    """Median, 10th and 90th percentile of a decode step, milliseconds."""
    assert arm.decode
    low, high = np.quantile(arm.decode.samples_ms, [0.1, 0.9])
    return arm.decode_ms, float(low), float(high)


def possible_fronts(
    fronts: Fronts, judgement: Judgement, cost: Array, most: int = 40
) -> list[Array]:
    """Fronts of single draws, each (corners, 2) as cost and quality, by ascending cost; none where
    one seed has no spread. cost: (draws, arms)."""
    if not judgement.df:
        return []
    found = []
    for quality, price in zip(fronts.draws.quality[:most], cost[:most], strict=True):
        points = np.stack([price, quality], axis=1)
        corners = points[front(points)]
        corners[:, 1] *= judgement.metric.sign
        found.append(corners[np.argsort(corners[:, 0])])
    return [corners for corners in found if len(corners)]


def _quality_vs_heads(axes: "Axes", arms: list[Arm], judgement: Judgement) -> Labels:
    heads = sorted({a.layout.mean_heads for a in arms})
    styles = looks(arms)
    for place, (name, look) in enumerate(styles.items()):
        line = [a for a in arms if grouping(a.layout)[1] == name]
        # Lines stand side by side at the same number of heads, so that bars do not hide each other.
        shift = 2 ** (0.09 * (place - (len(styles) - 1) / 2))
        x = [a.layout.mean_heads * shift for a in line]
        axes.errorbar(
            x,
            [a.mean for a in line],
            yerr=[judgement.bar(a) for a in line],
            color=look.colour,
            marker=look.marker,
            capsize=2,
            elinewidth=0.9,
            label=name,
            zorder=3,
        )
        for at, arm in zip(x, line, strict=True):
            axes.plot(
                [at * 1.06] * len(arm.values),
                arm.values,
                ".",
                color=look.colour,
                markersize=4,
                markeredgewidth=0,
                alpha=0.6,
                zorder=2,
            )
    axes.set_xscale("log", base=2)
    axes.set_xticks(heads, [f"{h:g}" for h in heads])
    axes.minorticks_off()
    axes.set_xlim(heads[0] / 1.25, heads[-1] * 1.25)
    axes.set_xlabel("Query heads per layer")
    axes.set_ylabel(judgement.metric.axis)
    _legend(axes, *axes.get_legend_handles_labels())
    return []


def _legend(axes: "Axes", handles: list[Any], labels: list[str]) -> None:
    """Names above the axes, where they hide nothing; none where there is one thing to see."""
    if len(handles) > 1:
        axes.figure.legend(
            handles,
            labels,
            loc="outside upper center",
            ncols=3 if max(map(len, labels)) <= 16 else 2,
            columnspacing=1.0,
            fontsize=6,
            frameon=False,
        )


def _name(judgement: Judgement) -> str:
    return judgement.reference.label if judgement.reference else ""


def _differences(axes: "Axes", judgement: Judgement) -> Labels:
    """Each layout's difference with its interval, first at the top."""
    shown = [c for c in judgement.comparisons if c.n_pairs]
    styles = looks([c.arm for c in shown])
    axes.axvspan(-judgement.margin, judgement.margin, color="#eeeeee", zorder=0)
    axes.axvline(0, color=GREY, linewidth=0.8, zorder=1)
    for row, comparison in enumerate(shown):
        look = styles[grouping(comparison.arm.layout)[1]]
        difference = comparison.difference
        decided = comparison.verdict in ("better", "worse", "equivalent", "reference")
        axes.errorbar(
            difference.estimate,
            row,
            xerr=difference.half_width or None,
            color=look.colour,
            marker=look.marker,
            markerfacecolor=look.colour if decided else "white",
            capsize=2,
            elinewidth=0.9,
            zorder=3,
        )
        axes.annotate(
            comparison.verdict if decided else "not yet decided",
            (1.01, row),
            xycoords=("axes fraction", "data"),
            fontsize=6,
            color="black" if decided else GREY,
            verticalalignment="center",
        )
    axes.set_yticks(range(len(shown)), [c.arm.label for c in shown])
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    metric = judgement.metric
    better = "left" if metric.sign > 0 else "right"
    unit = f" ({metric.unit})" if metric.unit else ""
    axes.set_xlabel(f"Δ {metric.name}{unit} from {_name(judgement)}; {better} is better")
    return []


def _trade_off(
    axes: "Axes",
    arms: list[Arm],
    judgement: Judgement,
    cost: Callable[[Arm], tuple[float, float, float]],
    label: str,
    possible: list[Array],
) -> Labels:
    """Quality against a cost (median, low, high), with the front as a staircase.

    possible: fronts of single draws, drawn faintly behind it.
    """
    from matplotlib.collections import LineCollection

    sign = judgement.metric.sign
    points = np.array([[cost(a)[0], sign * a.mean] for a in arms])
    on_front = front(points)
    corners = points[on_front][np.argsort(points[on_front][:, 0])]
    low, high = axes_limits(np.array([cost(a) for a in arms]))
    axes.plot(
        *_staircase(corners * [1, sign], high).T,
        color=GREY,
        linestyle="--",
        linewidth=0.9,
        zorder=1,
    )
    faint = LineCollection([_staircase(draw, high) for draw in possible], zorder=1)
    faint.set(color=GREY, linewidth=0.6, alpha=0.1)
    axes.add_collection(faint, autolim=False)
    styles = looks(arms)
    for name, look in styles.items():
        for i, arm in enumerate(arms):
            if grouping(arm.layout)[1] != name:
                continue
            median, below, above = cost(arm)
            axes.errorbar(
                median,
                arm.mean,
                yerr=judgement.bar(arm) or None,
                xerr=[[median - below], [above - median]] if above > below else None,
                color=look.colour,
                marker=look.marker,
                markerfacecolor=look.colour if on_front[i] else "white",
                elinewidth=0.6,
                capsize=0,
                alpha=1 if on_front[i] else 0.75,
                zorder=3,
            )
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    _plain_log_ticks(axes, points[:, 0], bytes_text if "bytes" in label else "{:g}".format)
    axes.set_xlabel(label)
    axes.set_ylabel(judgement.metric.axis)
    entries = _trade_off_legend(styles)
    _legend(axes, entries, [str(entry.get_label()) for entry in entries])
    few = len(arms) <= 24
    return [
        (float(points[i, 0]), arm.mean, short_label(arm))
        for i, arm in enumerate(arms)
        if few or on_front[i]
    ]


def _lines(axes: "Axes", chart: Chart) -> Labels:
    """A chart of lines with their spread; over names, points without a line."""
    from matplotlib.ticker import FuncFormatter

    for series in chart.series:
        look = series.look
        style: dict[str, Any] = {
            "color": series.colour,
            "marker": look.marker,
            "markersize": 3,
            "linestyle": "" if chart.x_names else DASHES[series.dash % len(DASHES)],
            "label": series.name,
        }
        if chart.band or not series.low:
            axes.plot(series.x, series.y, **style)
            if series.low:
                axes.fill_between(
                    series.x, series.low, series.high, color=series.colour, alpha=0.12, linewidth=0
                )
        else:
            y, low, high = map(np.array, (series.y, series.low, series.high))
            axes.errorbar(series.x, y, yerr=[y - low, high - y], elinewidth=0.6, **style)
    if chart.zero:
        axes.axhline(0, color=GREY, linewidth=0.8, zorder=1)
    if chart.x_log:
        axes.set_xscale("log")
        axes.set_xticks(chart.x_ticks, [chart.x_text(x) for x in chart.x_ticks])
    else:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: chart.x_text(x)))
    if chart.y_log:
        axes.set_yscale("log")
        axes.set_yticks(chart.y_ticks, [chart.y_text(y) for y in chart.y_ticks])
    if chart.x_log or chart.y_log:
        axes.minorticks_off()
    if chart.y_top is not None:
        axes.set_ylim(top=chart.y_top)
    if chart.x_names:
        axes.set_xticks(range(len(chart.x_names)), chart.x_names, rotation=30, ha="right")
    axes.set_xlabel(chart.x_title)
    axes.set_ylabel(chart.y_title)
    _legend(axes, *axes.get_legend_handles_labels())
    return []


def _staircase(corners: Array, end: float) -> Array:
    """The line of a front, (points, 2): each corner's quality holds until the next corner's cost."""
    x, y = corners.T
    return np.stack([np.repeat([*x, end], 2)[1:-1], np.repeat(y, 2)], axis=1)


def _trade_off_legend(styles: dict[str, Look]) -> list[Any]:
    """One entry a KV grouping, and what filled, hollow and the staircase mean."""
    from matplotlib.lines import Line2D

    entries = [
        Line2D([], [], color=look.colour, marker=look.marker, linestyle="", label=name)
        for name, look in styles.items()
    ]
    hollow = Line2D(
        [], [], color=GREY, marker="o", markerfacecolor="white", linestyle="", label="off the front"
    )
    stairs = Line2D([], [], color=GREY, linestyle="--", linewidth=0.9, label="front of the means")
    return [*entries, hollow, stairs]


def axes_limits(values: np.ndarray) -> tuple[float, float]:
    """Limits of a logarithmic axis with room for labels at both ends."""
    low, high = float(values.min()), float(values.max())
    room = max((high / low) ** 0.12, 1.15)
    return low / room, high * room


def _plain_log_ticks(axes: "Axes", values: np.ndarray, text: Callable[[float], str]) -> None:
    """Ticks in plain numbers: the values themselves if few, else round ones between the ends."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    distinct = np.unique(values)
    if len(distinct) <= 6 and (len(distinct) == 1 or np.diff(np.log2(distinct)).min() > 0.5):
        axes.set_xticks(distinct)
    else:
        spread = values.max() / values.min()
        axes.xaxis.set_major_locator(
            LogLocator(base=10, subs=(1, 2, 5) if spread > 8 else (1, 1.5, 2, 3, 4, 5, 6, 8))
        )
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))


def _label_points(axes: "Axes", labelled: Labels) -> None:
    """Write a label beside each point, at the first of eight places where it hides nothing."""
    from matplotlib.patheffects import withStroke
    from matplotlib.textpath import TextPath

    figure: Figure = axes.figure  # type: ignore[assignment]
    renderer = figure._get_renderer()  # type: ignore[attr-defined]
    point = figure.dpi / 72
    window = axes.get_window_extent(renderer)
    inside = np.array([window.x0, window.y0, window.x1, window.y1])
    taken: list[Array] = []
    dots = axes.transData.transform([(x, y) for x, y, _ in labelled])
    for row, (x, y, text) in enumerate(labelled):
        width = TextPath((0, 0), text, size=LABEL_SIZE).get_extents().width * point
        best = (inf, NEAR[0], inside)
        for place in NEAR:
            box = _beside(dots[row], place, width, point)
            area = (box[2] - box[0]) * (box[3] - box[1])
            cost = sum(_overlap(box, other) for other in taken)
            cost += area - _overlap(box, inside)
            held = (dots > box[:2]).all(axis=1) & (dots < box[2:]).all(axis=1)
            cost += 20 * point**2 * held.sum()
            if _nearest_dot(box, dots) != row:
                cost += 40 * point**2  # it would read as another's label
            if cost < best[0]:
                best = (cost, place, box)
            if not cost:
                break
        _, (dx, dy), box = best
        taken.append(box)
        axes.annotate(
            text,
            (x, y),
            xytext=(dx, dy),
            textcoords="offset points",
            fontsize=LABEL_SIZE,
            horizontalalignment="left" if dx > 0 else "right" if dx < 0 else "center",
            verticalalignment="center",
            zorder=4,
            path_effects=[withStroke(linewidth=1.5, foreground="white")],
        )


def _beside(dot: Array, place: tuple[int, int], width: float, point: float) -> Array:
    """The box (x0, y0, x1, y1) of a label at an offset from its dot, in pixels."""
    dx, dy = place
    left = dot[0] + dx * point - (0 if dx > 0 else width if dx < 0 else width / 2)
    middle, half = dot[1] + dy * point, 0.6 * LABEL_SIZE * point
    return np.array([left, middle - half, left + width, middle + half])


def _overlap(a: Array, b: Array) -> float:
    """Common area of two boxes."""
    sides = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
    return float(np.prod(np.maximum(sides, 0)))


def _nearest_dot(box: Array, dots: Array) -> int:
    """Which dot lies nearest to a box."""
    away = np.maximum(np.maximum(box[:2] - dots, dots - box[2:]), 0)
    return int(np.argmin((away**2).sum(axis=1)))
