"""The table of layouts as Markdown and as LaTeX."""

from headcount.analysis.chapters import Chapter
from headcount.analysis.words import short_count

_HEAD = ("Layout", "Params", "{metric}", "Seeds", "Δ", "Verdict", "Decode (ms)", "KV/token")


def _cells(chapter: Chapter) -> list[tuple[str, ...]]:
    metric = chapter.judgement.metric
    unit = f" ({metric.unit})" if metric.unit else ""
    head = tuple(h.format(metric=f"{metric.name.capitalize()}{unit}") for h in _HEAD)
    rows = [
        (
            row.arm.label,
            short_count(row.arm.n_params) if row.arm.n_params else "—",
            row.quality,
            row.seeds,
            row.difference,
            row.verdict,
            row.decode,
            row.kv,
        )
        for row in chapter.rows
    ]
    return [head, *rows]


def _caption(chapter: Chapter) -> str:
    """What the table rests on, in one line."""
    reference = chapter.judgement.reference
    parts = [chapter.title or chapter.evidence.study.name]
    parts.append("mean ± 95% t interval over seeds")
    if reference:
        parts.append(f"Δ from {reference.label} within seeds")
    if chapter.evidence.cost_setup:
        parts.append(f"decode: {chapter.evidence.cost_setup}")
    return "; ".join(parts)


def markdown(chapter: Chapter) -> str:
    """A Markdown table with its caption below."""
    head, *rows = ([c.replace("|", "\\|") for c in cells] for cells in _cells(chapter))
    rule = ["---", *["---:"] * 4, "---", "---:", "---:"]
    lines = [f"| {' | '.join(cells)} |" for cells in (head, rule, *rows)]
    return "\n".join([*lines, "", _caption(chapter), ""])


def latex(chapter: Chapter) -> str:
    """A booktabs table; needs `\\usepackage{booktabs}`."""
    head, *rows = (" & ".join(map(_tex, cells)) + r" \\" for cells in _cells(chapter))
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_tex(_caption(chapter))}}}",
            r"\begin{tabular}{lrrrrlrr}",
            r"\toprule",
            head,
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


_TEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "Δ": r"$\Delta$",
    "−": r"$-$",
    "–": "--",
    "—": "---",
    "×": r"$\times$",
}


def _tex(text: str) -> str:
    return "".join(_TEX.get(c, c) for c in text)
