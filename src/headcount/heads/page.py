"""The pages of one run's heads: self-contained, in the look of the study's report."""

from typing import Any

from headcount.analysis.pages import render
from headcount.heads.figures import Figure
from headcount.heads.record import ABLATIONS, Inspection, Pruning
from headcount.heads.words import change_text, name, pruning_sentences, sentences

PAIRS = 30
"""Pairs that are listed; inspection.json has all."""


def inspection_page(seen: Inspection, figures: list[Figure], study: str) -> str:
    """The HTML of an inspection."""
    return _rendered(
        "inspection.html",
        seen,
        figures,
        study,
        sentences=sentences(seen),
        kinds=ABLATIONS,
        rows=_rows(seen),
        slices=sorted({s for row in seen.ablations["zero"] for c in row for s in c.slices}),
        pairs=_pairs(seen),
    )


def pruning_page(seen: Pruning, figures: list[Figure], study: str) -> str:
    """The HTML of the curves along which heads can go."""
    return _rendered("pruning.html", seen, figures, study, sentences=pruning_sentences(seen))


def _rendered(
    template: str, seen: Inspection | Pruning, figures: list[Figure], study: str, **more: Any
) -> str:
    return render(
        "headcount.heads",
        template,
        {f.stem: f.spec for f in figures},
        seen=seen,
        study=study,
        figures=figures,
        change_text=change_text,
        **more,
    )


def _rows(seen: Inspection) -> list[dict[str, Any]]:
    """One row a head: every ablation, and zero ablation by slice."""
    return [
        {
            "name": name(layer, head),
            "changes": {kind: seen.ablations[kind][layer][head] for kind in ABLATIONS},
            "importance": seen.importance and seen.importance.mean[layer][head],
            "slices": seen.ablations["zero"][layer][head].slices,
        }
        for layer, n_heads in enumerate(seen.heads)
        for head in range(n_heads)
    ]


def _pairs(seen: Inspection) -> list[dict[str, Any]]:
    """Pairs under zero ablation, those first that cost most beyond the sum of their two."""
    zero = seen.ablations["zero"]
    found: list[dict[str, Any]] = [
        {
            "names": " and ".join(name(pair.layer, h) for h in pair.heads),
            "change": pair.change,
            "beyond": pair.change.loss - sum(zero[pair.layer][h].loss for h in pair.heads),
        }
        for pair in seen.pairs["zero"]
    ]
    return sorted(found, key=lambda pair: -pair["beyond"])[:PAIRS]
