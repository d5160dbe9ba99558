"""The figures of an inspection as plotly specifications, and as PNG files for papers and W&B."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from headcount.analysis.figures import NO_DATE, RULES
from headcount.heads.record import ABLATIONS, SHARE, Change, Inspection, Pruning, Score
from headcount.heads.words import change_text, name

Spec = dict[str, Any]
Grid = list[list[float | None]]

SEQUENTIAL = "Viridis"
DIVERGING = [[0.0, "#0072B2"], [0.5, "#f2f2f2"], [1.0, "#D55E00"]]
"""Around 0: blue below, orange above (Okabe and Ito)."""

MAP_TOKENS = 48
"""Tokens of a sequence whose maps are shown."""


@dataclass(frozen=True)
class Figure:
    """One figure of the page."""

    stem: str
    title: str
    definition: str
    spec: Spec
    as_text: bool = True
    """Whether its values are listed for those who cannot see them."""


@dataclass(frozen=True)
class Maps:
    """The maps of one sequence: its first tokens, and by layer the weights, (n_heads, n, n)."""

    symbols: list[str]
    weights: list[Tensor]


def figures(seen: Inspection, maps: Maps) -> list[Figure]:
    """Every figure, in reading order."""
    return [
        *ablation_figures(seen),
        *([score_figure("importance", seen.importance)] if seen.importance else []),
        *(score_figure(stem, score) for stem, score in seen.scores.items()),
        *likeness_figures(seen),
        map_figure(maps),
    ]


def score_figure(stem: str, score: Score) -> Figure:
    """Layers × heads."""
    text = [
        [
            f"head {name(layer, h)}: {_text(mean, half)} {score.unit}"
            for h, (mean, half) in enumerate(zip(means, halves, strict=True))
        ]
        for layer, (means, halves) in enumerate(zip(score.mean, score.half_width, strict=True))
    ]
    spec = heat(score.mean, text, score.unit)
    return Figure(stem, score.title, f"{score.definition}. {score.protocol}.", spec)


def ablation_figures(seen: Inspection) -> list[Figure]:
    """Layers × heads, for each way of ablating."""
    what = {
        "zero": "its output set to 0: what remains when it is cut out",
        "mean": "its output replaced by its mean over all sequences and places",
        "resample": "its output replaced by that on another sequence, at the same place",
    }
    found = []
    for kind in ABLATIONS:
        rows = seen.ablations[kind]
        text = [
            [f"head {name(layer, h)}: {change_text(c)} {seen.loss_unit}" for h, c in enumerate(row)]
            for layer, row in enumerate(rows)
        ]
        spec = heat([[c.loss for c in row] for row in rows], text, seen.loss_unit, zero=True)
        definition = (
            f"Change of the loss with one head ablated, {what[kind]}. {seen.n_sequences} sequences "
            f"of the {seen.split} split; the interval is the normal 95% one over sequences, paired."
        )
        found.append(Figure(f"ablation_{kind}", f"{kind.capitalize()} ablation", definition, spec))
    return found


def likeness_figures(seen: Inspection) -> list[Figure]:
    """Heads × heads of each layer, a menu to choose the layer."""
    found = []
    for stem, title, unit, definition in (
        (
            "jensen_shannon",
            "How differently heads look",
            "bits",
            "Jensen–Shannon divergence of the maps of two heads, mean over queries: 0 alike, 1 no key "
            "in common",
        ),
        (
            "cka",
            "How alike heads read",
            "CKA",
            "Linear CKA of the outputs of two heads over all tokens: 1 the same up to rotation and "
            "scale, 0 unrelated (Kornblith et al. 2019)",
        ),
    ):
        grids = [getattr(layer, stem) for layer in seen.layers]
        traces = [
            _trace(
                grid,
                [
                    [f"layer {i}, heads {a} and {b}: {v:.3f} {unit}" for b, v in enumerate(row)]
                    for a, row in enumerate(grid)
                ],
                unit,
                [str(h) for h in range(len(grid))],
                [str(h) for h in range(len(grid))],
            )
            for i, grid in enumerate(grids)
        ]
        spec = _menu(traces, [f"layer {i}" for i in range(len(grids))], "head", "head")
        found.append(Figure(stem, title, f"{definition}. {seen.n_sequences} sequences.", spec))
    return found


def map_figure(maps: Maps) -> Figure:
    """One head's map at a time, on the task's own tokens."""
    labels = [f"{i} {symbol}" for i, symbol in enumerate(maps.symbols)]
    traces, names = [], []
    for layer, weights in enumerate(maps.weights):
        for head, grid in enumerate(weights):
            rows = [[round(w, 3) for w in row] for row in grid.tolist()]
            trace = _trace(rows, None, "weight", labels, labels)
            trace["hovertemplate"] = "query %{y}<br>key %{x}<br>weight %{z}<extra></extra>"
            traces.append(trace | {"zmin": 0, "zmax": 1})
            names.append(f"head {name(layer, head)}")
    spec = _menu(traces, names, "key", "query")
    spec["layout"]["height"] = 620
    definition = (
        f"One head's attention weights on the first {len(labels)} tokens of the first sequence; a row "
        "is a query. Never averaged over heads, layers or sequences. A map shows where a head's weights "
        "went, not what the model used."
    )
    return Figure("maps", "Maps on the task's own tokens", definition, spec, as_text=False)


ORDER_COLOURS = {"importance": "#0072B2", "greedy": "#D55E00"}


def pruning_figure(seen: Pruning) -> Figure:
    """The change of the loss against the heads kept, a line for each order."""
    traces = []
    for order, removals in seen.orders.items():
        changes = [r.change for r in removals]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": order,
                "x": [seen.n_heads, *(r.kept for r in removals)],
                "y": [0.0, *(c.loss for c in changes)],
                "error_y": {"type": "data", "array": [0.0, *map(_half_width, changes)]},
                "line": {"color": ORDER_COLOURS[order]},
                "text": [
                    "whole",
                    *(
                        f"{order}: {r.kept} kept, {name(r.layer, r.head)} cut out last: "
                        f"{change_text(r.change)} {seen.loss_unit}"
                        for r in removals
                    ),
                ],
                "hoverinfo": "text",
            }
        )
    layout = {
        "xaxis": {"title": {"text": "query heads kept"}, "autorange": "reversed"},
        "yaxis": {"title": {"text": f"Δ loss ({seen.loss_unit}), lower is better"}},
    }
    definition = (
        "Loss without the heads that are gone minus that of the whole model, zero ablation, paired "
        f"over {seen.n_sequences} sequences of the {seen.split} split; bars: normal 95% intervals. "
        "importance: least gradient importance first (Michel et al. 2019); greedy: at each step the "
        "head without which the loss is least."
    )
    title = "Loss against heads kept"
    return Figure("pruning", title, definition, {"data": traces, "layout": layout})


def _half_width(change: Change) -> float:
    return 0.0 if change.high is None else change.high - change.loss


def heat(values: Grid, text: list[list[str]], unit: str, zero: bool = False) -> Spec:
    """A heat map of layers × heads; layers may differ in heads. zero: colours turn at 0."""
    width = max((len(row) for row in values), default=0)
    heads = [str(h) for h in range(width)]
    layers = [str(layer) for layer in range(len(values))]
    trace = _trace(values, text, unit, heads, layers)
    if unit == SHARE:
        trace |= {"zmin": 0, "zmax": 1}
    if zero:
        trace |= {"colorscale": DIVERGING, "zmid": 0}
    layout = _axes("head", "layer") | {"height": 150 + 34 * len(values)}
    return {"data": [trace], "layout": layout}


def _trace(
    values: Any, text: list[list[str]] | None, unit: str, x: list[str], y: list[str]
) -> Spec:
    width = len(x)
    trace: Spec = {
        "type": "heatmap",
        "z": [[*row, *[None] * (width - len(row))] for row in values],
        "x": x,
        "y": y,
        "colorscale": SEQUENTIAL,
        "colorbar": {"title": {"text": unit}, "thickness": 12},
        "xgap": 1,
        "ygap": 1,
    }
    if text is not None:
        trace |= {"text": [[*row, *[""] * (width - len(row))] for row in text]}
        trace |= {"hoverinfo": "text"}
    return trace


def _menu(traces: list[Spec], names: list[str], x: str, y: str) -> Spec:
    """Traces of which one is shown, by a menu."""
    buttons = [
        {
            "label": label,
            "method": "restyle",
            "args": ["visible", [i == j for j in range(len(traces))]],
        }
        for i, label in enumerate(names)
    ]
    menu = {"buttons": buttons, "x": 0, "xanchor": "left", "y": 1.15, "yanchor": "bottom"}
    layout = _axes(x, y) | {"updatemenus": [menu], "margin": {"t": 60, "l": 60, "r": 20, "b": 50}}
    return {
        "data": [trace | {"visible": i == 0} for i, trace in enumerate(traces)],
        "layout": layout,
    }


def _axes(x: str, y: str) -> Spec:
    return {
        "xaxis": {"title": {"text": x}, "type": "category"},
        "yaxis": {"title": {"text": y}, "type": "category", "autorange": "reversed"},
    }


def _text(mean: float | None, half: float | None) -> str:
    if mean is None:
        return "not told"
    return f"{mean:.3f}" + (f" ± {half:.2g}" if half is not None else "")


# -- files ---------------------------------------------------------------------------------------


def write_pictures(seen: Inspection, maps: Maps, folder: Path) -> list[Path]:
    """Heat maps of all scores and ablations, and every head's map, as PNG files in `folder`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    scores: dict[str, tuple[Any, str, bool]] = {
        s.title: (s.mean, s.unit, False) for s in seen.scores.values()
    }
    if seen.importance:
        scores["Gradient importance"] = (seen.importance.mean, "share of the layer's norm", False)
    ablations: dict[str, tuple[Any, str, bool]] = {
        f"{kind.capitalize()} ablation": (
            [[c.loss for c in row] for row in rows],
            f"Δ loss ({seen.loss_unit})",
            True,
        )
        for kind, rows in seen.ablations.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    note = f"{seen.label}, run {seen.run_id}; {seen.n_sequences} {seen.split} sequences"
    rules: dict[Any, Any] = RULES | {"axes.grid": False}
    with plt.rc_context(rules):
        for stem, grids in (("scores", scores), ("ablation", ablations)):
            figure, axes = plt.subplots(
                len(grids), 1, figsize=(3.5, 0.9 * len(grids) + 0.28 * len(grids) * len(seen.heads)),
                layout="constrained", squeeze=False,
            )  # fmt: skip
            for ax, (title, (values, unit, zero)) in zip(axes[:, 0], grids.items(), strict=True):
                _paint(figure, ax, title, values, unit, zero)
            figure.text(0.01, -0.02, note, fontsize=5, va="top")
            written.append(_save(figure, folder / f"{stem}.png"))
        width = max([*seen.heads, 1])
        figure, axes = plt.subplots(
            len(maps.weights), width, figsize=(1.1 * width, 1.2 * len(maps.weights)),
            layout="constrained", squeeze=False,
        )  # fmt: skip
        for layer, row in enumerate(axes):
            for head, ax in enumerate(row):
                ax.set_axis_off()
                if head < len(maps.weights[layer]):
                    ax.imshow(maps.weights[layer][head].numpy(), vmin=0, vmax=1)
                    ax.set_title(name(layer, head), fontsize=6)
        figure.text(0.01, -0.02, f"rows: queries, columns: keys; {note}", fontsize=5, va="top")
        written.append(_save(figure, folder / "maps.png"))
    return written


def write_pruning_picture(seen: Pruning, path: Path) -> Path:
    """The curves as a PNG file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rules: dict[Any, Any] = RULES
    with plt.rc_context(rules):
        figure, ax = plt.subplots(figsize=(3.5, 2.6), layout="constrained")
        for order, removals in seen.orders.items():
            ax.errorbar(
                [seen.n_heads, *(r.kept for r in removals)],
                [0.0, *(r.change.loss for r in removals)],
                [0.0, *(_half_width(r.change) for r in removals)],
                marker="o", color=ORDER_COLOURS[order], label=order,
            )  # fmt: skip
        ax.set(xlabel="query heads kept", ylabel=f"Δ loss ({seen.loss_unit})")
        ax.invert_xaxis()
        ax.legend(frameon=False)
        note = f"{seen.label}, run {seen.run_id}; {seen.n_sequences} {seen.split} sequences"
        figure.text(0.01, -0.03, note, fontsize=5, va="top")
        path.parent.mkdir(parents=True, exist_ok=True)
        return _save(figure, path)


def _paint(figure: Any, ax: Any, title: str, values: Grid, unit: str, zero: bool) -> None:
    import numpy as np
    from matplotlib.colors import LinearSegmentedColormap

    width = max((len(row) for row in values), default=0)
    grid = np.array(
        [
            [np.nan if v is None else v for v in [*row, *[None] * (width - len(row))]]
            for row in values
        ],
        dtype=float,
    )
    most = float(np.nanmax(np.abs(grid))) if np.isfinite(grid).any() else 1.0
    options: dict[str, Any] = {"vmin": 0, "vmax": 1} if unit == SHARE else {}
    if zero:
        colours = LinearSegmentedColormap.from_list("change", [str(c) for _, c in DIVERGING])
        options = {"cmap": colours, "vmin": -most, "vmax": most}
    image = ax.imshow(grid, aspect="auto", **options)
    figure.colorbar(image, ax=ax, label=unit)
    ax.set(title=title, xlabel="head", ylabel="layer", xticks=range(width), yticks=range(len(grid)))


def _save(figure: Any, path: Path) -> Path:
    from matplotlib import pyplot as plt

    figure.savefig(path, bbox_inches="tight", metadata=NO_DATE["png"])
    plt.close(figure)
    return path
