"""Charts of lines, described once and drawn twice: by matplotlib for papers, by plotly on the page."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from headcount.analysis import curves, statistics
from headcount.analysis.arms import Arm, grouping
from headcount.analysis.evidence import Evidence
from headcount.analysis.pareto import front
from headcount.analysis.style import Look, binary_ticks, looks, round_ticks, shade
from headcount.analysis.verdicts import Judgement
from headcount.analysis.words import bytes_text, count, millis, short_count, tokens_text
from headcount.heads import record as inspection
from headcount.heads.record import Inspection
from headcount.study.records import Point

MOST_LINES = 14
"""More lines than this cannot be told apart; then only layouts worth a line are drawn."""


@dataclass(frozen=True)
class Series:
    """One line. low, high: limits of its spread at each x; empty where there is none."""

    name: str
    look: Look
    colour: str
    """A shade of the look's; layouts of one KV grouping differ by it and by the dash."""
    dash: int
    x: list[float]
    y: list[float]
    text: list[str]
    """What each point tells under the pointer."""
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Chart:
    """A chart of lines and everything that has to be said under it."""

    stem: str
    title: str
    definition: str
    x_title: str
    y_title: str
    series: list[Series]
    note: str
    """The small line of a paper's picture: where the figures were taken."""
    x_log: bool = False
    y_log: bool = False
    band: bool = False
    """The spread is a band; otherwise bars."""
    x_names: tuple[str, ...] = ()
    """x counts these names, from 0 on."""
    x_ticks: tuple[float, ...] = ()
    """Of a logarithmic axis."""
    x_text: Callable[[float], str] = "{:,g}".format
    """How a tick of x is written."""
    y_ticks: tuple[float, ...] = ()
    y_text: Callable[[float], str] = "{:g}".format
    """How a tick of a logarithmic y is written."""
    y_top: float | None = None
    """Upper end of y, where all of it would hide what matters."""
    zero: bool = False
    """A line at y = 0."""


def charts(evidence: Evidence, judgement: Judgement) -> list[Chart]:
    """The charts that the records of a condition allow, in reading order."""
    trained = training_note(evidence, judgement)
    arms = [a for a in evidence.arms_of(judgement.condition) if len(a.values)]
    shown, which = _worth_a_line(arms, judgement)
    found = [
        _latency(shown, "decode", evidence),
        _latency(shown, "prefill", evidence),
        _cache(shown),
        _learning(shown, evidence, judgement, trained),
        _rates(evidence.arms_of(judgement.condition), judgement, trained),
        _slices(shown, judgement, trained),
        _effective(arms, evidence),
    ]
    return [
        Chart(**(vars(chart) | {"definition": chart.definition + which}))
        for chart in found
        if chart and chart.series
    ]


def _worth_a_line(arms: list[Arm], judgement: Judgement) -> tuple[list[Arm], str]:
    """All arms if they are few; else those on a front and the reference. And a word about it."""
    if len(arms) <= MOST_LINES:
        return arms, ""
    sign = judgement.metric.sign
    figures = np.array([[sign * a.mean, a.decode_ms, a.kv_bytes] for a in arms])
    kept = front(figures[:, :2]) | front(figures[:, ::2])
    if not kept.any():
        kept[np.argsort(figures[:, 0])[:MOST_LINES]] = True
    best = [a for a, keep in zip(arms, kept, strict=True) if keep][:MOST_LINES]
    reference = judgement.reference
    if reference is not None and reference not in best:
        best = [*best, reference]
    shown = [a for a in arms if any(a is b for b in best)]
    return shown, f" Shown of {len(arms)} layouts: those on a front, and the reference."


def _line(
    arm: Arm,
    arms: list[Arm],
    x: list[float],
    y: list[float],
    text: list[str],
    low: list[float] | None = None,
    high: list[float] | None = None,
) -> Series:
    name = grouping(arm.layout)[1]
    same = [a for a in arms if grouping(a.layout)[1] == name]
    place = next(i for i, a in enumerate(same) if a is arm)
    look = looks(arms)[name]
    colour = shade(look.colour, place, len(same))
    return Series(arm.label, look, colour, place, x, y, text, low or [], high or [])


def _latency(arms: list[Arm], phase: str, evidence: Evidence) -> Chart | None:
    """Time against context at the headline batch, for layouts that have several contexts."""
    series = []
    for arm in arms:
        if arm.cost is None:
            continue
        batch = arm.cost.protocol["headline_batch_size"]
        points = sorted(
            (p for p in arm.cost.points if p.phase == phase and p.batch_size == batch),
            key=lambda p: p.context,
        )
        if len(points) > 1:
            spread = [np.quantile(p.samples_ms, [0.1, 0.9]).tolist() for p in points]
            series.append(
                _line(
                    arm,
                    arms,
                    [float(p.context) for p in points],
                    [p.p50_ms for p in points],
                    [_timing_text(arm, p) for p in points],
                    [low for low, _ in spread],
                    [high for _, high in spread],
                )
            )
    if not series:
        return None
    step = "decode step" if phase == "decode" else "prefill"
    cost = next(a.cost for a in arms if a.cost)
    kernels = {p.kernel for a in arms if a.cost for p in a.cost.points if p.phase == phase}
    where = (
        f"batch {cost.protocol['headline_batch_size']}, {cost.dtype}, {cost.device}, "
        f"kernel {' / '.join(sorted(kernels))}"
    )
    return Chart(
        stem=f"{phase}_latency_vs_context",
        title=f"{'Decode' if phase == 'decode' else 'Prefill'} latency against context",
        definition=(
            f"Median time of one {step}, bar from the 10th to the 90th percentile; {where}."
        ),
        x_title="Context (tokens)",
        y_title=f"{'Decode' if phase == 'decode' else 'Prefill'} latency (ms"
        f"{' per step' if phase == 'decode' else ''})",
        series=series,
        note=where,
        x_log=True,
        x_ticks=_all_x(series),
        y_log=True,
        y_ticks=tuple(
            round_ticks(min(y for s in series for y in s.y), max(y for s in series for y in s.y))
        ),
    )


def _timing_text(arm: Arm, point: Point) -> str:
    bound = (
        f"<br>floor {millis(point.bound_ms)} ms, by {point.bound_by}"
        if point.bound_ms is not None
        else ""
    )
    return (
        f"<b>{arm.label}</b><br>context {point.context:,}, batch {point.batch_size}<br>"
        f"{millis(point.p50_ms)} ms (p90 {millis(point.p90_ms)})<br>{point.kernel}, "
        f"{point.kv_sharing}{bound}"
    )


def _cache(arms: list[Arm]) -> Chart | None:
    """KV-cache bytes against tokens in flight; layouts with the same cache share a line."""
    by_bytes: dict[float, list[Arm]] = {}
    for arm in arms:
        if arm.cost:
            by_bytes.setdefault(arm.kv_bytes, []).append(arm)
    if not by_bytes:
        return None
    cost = next(a.cost for a in arms if a.cost)
    tokens = [float(2**k) for k in range(7, 21)]
    series = []
    for size, same in sorted(by_bytes.items()):
        line = _line(
            same[0],
            arms,
            tokens,
            [size * t for t in tokens],
            [
                f"<b>{', '.join(a.label for a in same)}</b><br>{t:,.0f} tokens in flight<br>"
                f"{bytes_text(size * t)}"
                for t in tokens
            ],
        )
        more = f" +{len(same) - 1}" if len(same) > 1 else ""
        series.append(Series(**(vars(line) | {"name": f"{same[0].label}{more}"})))
    weights = cost.memory.weights_bytes
    return Chart(
        stem="kv_cache_vs_context_and_batch",
        title="KV cache against context and batch",
        definition=(
            f"Bytes of the whole KV cache in {cost.dtype}: bytes per token times context times "
            "batch, so one axis holds both. +N: so many more layouts have the same cache. The "
            f"weights of {next(a.label for a in arms if a.cost)} take {bytes_text(weights)}."
        ),
        x_title="Tokens in flight (context × batch)",
        y_title="KV cache (bytes)",
        series=series,
        note=f"{cost.dtype}, all layers",
        x_log=True,
        x_ticks=tuple(binary_ticks(tokens[0], tokens[-1])),
        x_text=tokens_text,
        y_log=True,
        y_ticks=tuple(binary_ticks(min(by_bytes) * tokens[0], max(by_bytes) * tokens[-1])),
        y_text=bytes_text,
    )


def _learning(
    arms: list[Arm], evidence: Evidence, judgement: Judgement, trained: str
) -> Chart | None:
    series = []
    for arm in arms:
        found = curves.curve(evidence.study, arm)
        if found is None:
            continue
        series.append(
            _line(
                arm,
                arms,
                found.tokens.tolist(),
                found.mean.tolist(),
                [
                    f"<b>{arm.label}</b><br>{t:,.0f} tokens<br>{m:.4f}"
                    for t, m in zip(found.tokens, found.mean, strict=True)
                ],
                found.low.tolist(),
                found.high.tolist(),
            )
        )
    return Chart(
        stem="learning_curves",
        title="Learning curves",
        definition=(
            "Mean validation loss over seeds; the band spans the seeds. The beginning of the "
            "training may lie above the picture."
        ),
        x_title="Training tokens",
        y_title=f"Validation loss ({judgement.metric.loss_unit})",
        series=series,
        note=trained,
        band=True,
        x_text=short_count,
        y_top=_late_top(series),
    )


def _all_x(series: list[Series]) -> tuple[float, ...]:
    """Every x that a series has, thinned to at most eight."""
    every = sorted({x for s in series for x in s.x})
    return tuple(every[:: -(-len(every) // 8)]) if every else ()


def _late_top(series: list[Series]) -> float | None:
    """Above the highest loss after three tenths of the training, so that the late differences show."""
    end = max((s.x[-1] for s in series), default=0.0)
    late = [y for s in series for x, y in zip(s.x, s.high, strict=True) if x >= 0.3 * end]
    early = [y for s in series for y in s.high]
    if not late or max(early) < 1.2 * max(late):
        return None
    return max(late) + 0.1 * (max(late) - min(min(s.low) for s in series))


def _rates(arms: list[Arm], judgement: Judgement, trained: str) -> Chart | None:
    series = []
    for arm in arms:
        found = arm.sensitivity
        if found is None:
            continue
        text = [
            f"<b>{arm.label}</b><br>lr {lr:g}: {mean:.4f}{f'<br>{lost} not completed' if lost else ''}"
            f"<br>fitted optimum {found.optimum:.2g}{' (edge of the grid)' if found.on_edge else ''}"
            for lr, mean, lost in zip(found.rates, found.means, found.lost, strict=True)
        ]
        series.append(
            _line(
                arm,
                arms,
                list(found.rates),
                list(found.means),
                text,
                list(found.lows),
                list(found.highs),
            )
        )
    return Chart(
        stem="lr_sensitivity",
        title="Sensitivity to the learning rate",
        definition=(
            "Mean best validation loss over the seeds that chose the learning rate; the bar spans "
            "the seeds. Runs that did not complete leave a gap."
        ),
        x_title="Learning rate",
        y_title=f"Validation loss ({judgement.metric.loss_unit})",
        series=series,
        note=trained,
        x_log=True,
        x_ticks=_all_x(series),
    )


def _slice_name(name: str) -> str:
    """`position_16_63` as people read it: `position 16–63`."""
    return re.sub(r"(\d+)_(\d+)", r"\1–\2", name).replace("_", " ")


def _slices(arms: list[Arm], judgement: Judgement, trained: str) -> Chart | None:
    """Differences from the reference by slice, on the seeds that both have."""
    reference = judgement.reference
    if reference is None or not reference.slices:
        return None
    names = list(reference.slices)
    series = []
    others = [a for a in arms if a is not reference and set(a.slices) == set(names)]
    for place, arm in enumerate(others):
        # Side by side within a slice, so that bars do not hide each other.
        shift = 0.5 * (place - (len(others) - 1) / 2) / max(len(others), 1)
        shared = [s for s in arm.seeds if s in reference.by_seed]
        mine = [arm.seeds.index(s) for s in shared]
        theirs = [reference.seeds.index(s) for s in shared]
        if not shared:
            continue
        found = [
            statistics.t_interval(arm.slices[n][mine] - reference.slices[n][theirs]) for n in names
        ]
        bars = len(shared) > 1
        series.append(
            _line(
                arm,
                arms,
                [i + shift for i in range(len(names))],
                [f.estimate for f in found],
                [
                    f"<b>{arm.label}</b><br>{n}: {f.estimate:+.4f}"
                    + (f" ± {f.half_width:.4f}" if bars else "")
                    for n, f in zip(names, found, strict=True)
                ],
                [f.low for f in found] if bars else None,
                [f.high for f in found] if bars else None,
            )
        )
    return Chart(
        stem="slices",
        title=f"Where layouts differ from {reference.label}",
        definition=(
            "Mean difference in test loss on named parts of the test tokens, within a seed, and its "
            "95% t interval; below 0 is better."
        ),
        x_title="Slice of the test tokens",
        y_title=f"Δ test loss ({judgement.metric.loss_unit}) from {reference.label}",
        series=series,
        note=trained,
        x_names=tuple(map(_slice_name, names)),
        zero=True,
    )


def _effective(arms: list[Arm], evidence: Evidence) -> Chart | None:
    """Effective against nominal heads, of the runs that `headcount inspect` has looked into."""
    seen = {a.label: _inspected(a, evidence) for a in arms}
    arms = sorted((a for a in arms if seen[a.label]), key=lambda a: a.layout.mean_heads)
    if not arms:
        return None
    series = []
    for place, (name, look) in enumerate(looks(arms).items()):
        line = [a for a in arms if grouping(a.layout)[1] == name]
        values = [[found.effective_heads for found in seen[a.label]] for a in line]
        series.append(
            Series(
                name,
                look,
                look.colour,
                place,
                [a.layout.mean_heads for a in line],
                [float(np.mean(v)) for v in values],
                [
                    f"<b>{a.label}</b><br>{np.mean(v):.2f} effective of {a.layout.mean_heads:g} heads "
                    f"a layer ({count(len(v), 'run')})"
                    for a, v in zip(line, values, strict=True)
                ],
                [min(v) for v in values],
                [max(v) for v in values],
            )
        )
    first = seen[arms[0].label][0]
    ticks = tuple(sorted({a.layout.mean_heads for a in arms}))
    return Chart(
        stem="effective_heads",
        title="Effective against nominal heads",
        definition=(
            "Heads of a layer that differ in what they read: the Vendi score of the linear CKA "
            "between the outputs of its heads, mean over layers; as many as there are heads where "
            "none resembles another, 1 where all are alike. Mean over the runs inspected; bar: the "
            "least and the greatest."
        ),
        x_title="Query heads per layer",
        y_title="Effective heads per layer",
        series=series,
        note=f"{first.n_sequences} sequences of the {first.split} split a run",
        x_log=True,
        x_ticks=ticks,
    )


def _inspected(arm: Arm, evidence: Evidence) -> list[Inspection]:
    found = (inspection.read(evidence.study.run_folder(run_id)) for run_id in arm.run_ids)
    return [f for f in found if f is not None]


def training_note(evidence: Evidence, judgement: Judgement) -> str:
    """What the quality figures rest on: task, width, seeds, tokens and the learning rates."""
    arms = [a for a in evidence.arms_of(judgement.condition) if len(a.values)]
    if not arms:
        return ""
    first = next(r for r in evidence.records if r.run_id == arms[0].run_ids[0])
    seeds = sorted({len(a.seeds) for a in arms})
    task = first.config.get("task", {}).get("name", "")
    number = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]}–{seeds[-1]}"
    parts = [
        task,
        f"d_model {first.layout.d_model}",
        f"{number} seed{'s' if number != '1' else ''}",
        f"{first.training.tokens:,} tokens",
        _rate_note(arms),
    ]
    return ", ".join(p for p in parts if p)


def _rate_note(arms: list[Arm]) -> str:
    """Where the learning rates are from, in few words."""
    tuned = sum(a.lr_choice == "tuned" for a in arms)
    if tuned:
        return f"lr tuned per layout{f' ({tuned} of {len(arms)})' if tuned < len(arms) else ''}"
    if any(a.lr_choice == "same seeds" for a in arms):
        return "lr chosen on the seeds shown"
    lrs = {a.lr for a in arms if a.lr is not None}
    return f"shared lr {lrs.pop():g}" if len(lrs) == 1 else "lr differs between layouts"
