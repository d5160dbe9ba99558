"""The pictures of a study as PNG files, sized for one column of a paper.

Each has axes with units, the spread drawn, and a last line that says under which conditions its
figures were taken. Colours and markers are `style.looks`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headcount.analysis.evidence import Arm, Evidence, grouping
from headcount.analysis.pareto import front
from headcount.analysis.style import Look, looks, short_label
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


@dataclass(frozen=True)
class Picture:
    """A picture on disk and what it shows."""

    path: Path
    title: str
    definition: str


def draw(evidence: Evidence, judgement: Judgement, folder: Path) -> list[Picture]:
    """Write the pictures of one condition that its records allow; returns them in reading order."""
    import matplotlib

    matplotlib.use("agg")
    arms = [a for a in evidence.arms_of(judgement.condition) if len(a.values)]
    if not arms:
        return []
    metric = evidence.metric
    pictures = []
    folder.mkdir(parents=True, exist_ok=True)

    def add(
        stem: str, title: str, definition: str, paint: Callable[["Axes"], None], note: str
    ) -> None:
        with matplotlib.rc_context(RULES):  # type: ignore[arg-type]
            path = folder / f"{stem}.png"
            _save(paint, note, path)
        pictures.append(Picture(path, title, definition))

    bar = (
        "Vertical bar: 95% interval for comparing layouts, with what a seed does to all of them "
        "taken out and the spread pooled (Loftus and Masson 1994)."
        if judgement.df
        else "No bar: too few seeds to tell the spread."
    )
    trained = training_note(evidence, judgement)
    add(
        "quality_vs_heads",
        f"{metric.name.capitalize()} against the number of heads",
        f"Mean {metric.name} over seeds; small dots are single seeds; one line for each way of "
        f"sharing KV heads. {bar}",
        lambda axes: _quality_vs_heads(axes, arms, judgement),
        trained,
    )
    if len(arms) > 1 and judgement.df:
        add(
            "difference_from_reference",
            f"Difference in {metric.name} from {_name(judgement)}",
            "Mean difference within a seed (same batches) and its 95% t interval; the band is the "
            f"equivalence margin, ±{judgement.margin:g}.",
            lambda axes: _differences(axes, judgement),
            trained,
        )
    timed = [a for a in arms if np.isfinite(a.decode_ms)]
    if timed:
        add(
            "quality_vs_decode_latency",
            f"{metric.name.capitalize()} against decode latency",
            f"Median time of one decode step, bar from the 10th to the 90th percentile; "
            f"{evidence.cost_setup}. Filled: on the front, no other layout is as good in both. {bar}",
            lambda axes: _trade_off(
                axes,
                timed,
                judgement,
                lambda a: (a.decode_ms, *np.quantile(a.decode.samples_ms, [0.1, 0.9])),  # type: ignore[union-attr]
                "Decode latency (ms per step, p50; bar p10–p90)",
            ),
            f"{evidence.cost_setup}\n{trained}",
        )
    cached = [a for a in arms if np.isfinite(a.kv_bytes)]
    if cached:
        dtype = cached[0].cost.dtype  # type: ignore[union-attr]
        add(
            "quality_vs_kv_bytes",
            f"{metric.name.capitalize()} against KV cache",
            f"KV-cache bytes per token of one sequence over all layers, {dtype}, read off the live "
            f"cache. Filled: on the front, no other layout is as good in both. {bar}",
            lambda axes: _trade_off(
                axes,
                cached,
                judgement,
                lambda a: (a.kv_bytes, a.kv_bytes, a.kv_bytes),
                f"KV cache (bytes per token, all layers, {dtype})",
            ),
            trained,
        )
    return pictures


def training_note(evidence: Evidence, judgement: Judgement) -> str:
    """What the quality figures rest on: task, width, seeds, tokens and the learning rates."""
    arms = [a for a in evidence.arms_of(judgement.condition) if len(a.values)]
    if not arms:
        return ""
    first = next(r for r in evidence.records if r.run_id == arms[0].run_ids[0])
    seeds = sorted({len(a.seeds) for a in arms})
    rate = "lr tuned per layout"
    if not any(a.lr_choice == "tuned" for a in arms):
        lrs = {a.lr for a in arms if a.lr is not None}
        rate = f"shared lr {lrs.pop():g}" if len(lrs) == 1 else "lr differs between layouts"
    task = first.config.get("task", {}).get("name", "")
    number = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]}–{seeds[-1]}"
    parts = [
        task,
        f"d_model {first.layout.d_model}",
        f"{number} seed{'s' if number != '1' else ''}",
        f"{first.training.tokens:,} tokens",
        rate,
    ]
    return ", ".join(p for p in parts if p)


def _save(paint: Callable[["Axes"], None], note: str, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    axes = figure.add_subplot()
    paint(axes)
    figure.supxlabel(note, fontsize=5.5, color=GREY)
    figure.savefig(path)


def _quality_vs_heads(axes: "Axes", arms: list[Arm], judgement: Judgement) -> None:
    heads = sorted({a.layout.n_heads for a in arms})
    styles = looks(arms)
    for place, (name, look) in enumerate(styles.items()):
        line = [a for a in arms if grouping(a.layout)[1] == name]
        # Lines stand side by side at the same number of heads, so that bars do not hide each other.
        shift = 2 ** (0.09 * (place - (len(styles) - 1) / 2))
        x = [a.layout.n_heads * shift for a in line]
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
    axes.set_xticks(heads, [str(h) for h in heads])
    axes.minorticks_off()
    axes.set_xlim(heads[0] / 1.25, heads[-1] * 1.25)
    axes.set_xlabel("Query heads per layer")
    axes.set_ylabel(judgement.metric.axis)
    axes.legend(frameon=False)


def _name(judgement: Judgement) -> str:
    return judgement.reference.label if judgement.reference else ""


def _differences(axes: "Axes", judgement: Judgement) -> None:
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


def _trade_off(
    axes: "Axes",
    arms: list[Arm],
    judgement: Judgement,
    cost: Callable[[Arm], tuple[float, float, float]],
    label: str,
) -> None:
    """Quality against a cost (median, low, high), with the front as a staircase."""
    sign = judgement.metric.sign
    points = np.array([[cost(a)[0], sign * a.mean] for a in arms])
    on_front = front(points)
    corners = points[on_front][np.argsort(points[on_front][:, 0])]
    low, high = axes_limits(points[:, 0])
    axes.step(
        [*corners[:, 0], high],
        [*(sign * corners[:, 1]), sign * corners[-1, 1]],
        where="post",
        color=GREY,
        linestyle="--",
        linewidth=0.9,
        zorder=1,
    )
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
    axes.legend(handles=_trade_off_legend(styles), frameon=False)
    few = len(arms) <= 24
    _label_points(
        axes,
        [
            (points[i, 0], arm.mean, short_label(arm))
            for i, arm in enumerate(arms)
            if few or on_front[i]
        ],
    )


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


def _label_points(axes: "Axes", labelled: list[tuple[float, float, str]]) -> None:
    """Write a label beside each point, at the first of eight places where it hides nothing."""
    from matplotlib.patheffects import withStroke

    figure: Figure = axes.figure  # type: ignore[assignment]
    figure.draw_without_rendering()
    renderer = figure._get_renderer()  # type: ignore[attr-defined]
    inside = axes.get_window_extent(renderer)
    legend = axes.get_legend()
    taken = [legend.get_window_extent(renderer)] if legend else []
    dots = axes.transData.transform([(x, y) for x, y, _ in labelled])
    near = ((4, 5), (-4, -5), (4, -5), (-4, 5), (4, 0), (-4, 0), (0, 7), (0, -7))
    for row, (x, y, text) in enumerate(labelled):
        best: tuple[float, Any, Any] | None = None
        for dx, dy in near:
            note = axes.annotate(
                text,
                (x, y),
                xytext=(dx, dy),
                textcoords="offset points",
                fontsize=6,
                horizontalalignment="left" if dx > 0 else "right" if dx < 0 else "center",
                verticalalignment="center",
                zorder=4,
                path_effects=[withStroke(linewidth=1.5, foreground="white")],
            )
            box = note.get_window_extent(renderer)
            overlap = sum(_overlap(box, other) for other in taken)
            overlap += 20 * sum(box.x0 < px < box.x1 and box.y0 < py < box.y1 for px, py in dots)
            overlap += box.width * box.height - _overlap(box, inside)
            overlap += 40 * (_nearest_dot(box, dots) != row)  # else it reads as another's label
            if best is None or overlap < best[0]:
                if best:
                    best[1].remove()
                best = overlap, note, box
            else:
                note.remove()
            if not best[0]:
                break
        assert best
        taken.append(best[2])


def _overlap(a: Any, b: Any) -> float:
    """Common area of two boxes."""
    width = min(a.x1, b.x1) - max(a.x0, b.x0)
    height = min(a.y1, b.y1) - max(a.y0, b.y0)
    return float(max(width, 0) * max(height, 0))


def _nearest_dot(box: Any, dots: np.ndarray) -> int:
    """Which dot lies nearest to a box."""
    dx = np.maximum(np.maximum(box.x0 - dots[:, 0], dots[:, 0] - box.x1), 0)
    dy = np.maximum(np.maximum(box.y0 - dots[:, 1], dots[:, 1] - box.y1), 0)
    return int(np.argmin(np.hypot(dx, dy)))
