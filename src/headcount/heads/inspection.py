"""Everything that is to be seen in the heads of one run, in passes that fit memory."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from headcount.heads import scores
from headcount.heads.ablation import Ablator
from headcount.heads.importance import agreement, importance, normalised
from headcount.heads.record import ABLATIONS, SHARE, Inspection, Layer, Score
from headcount.heads.redundancy import QUERIES, Alikeness, effective_heads, jensen_shannon
from headcount.heads.scores import Tally
from headcount.heads.watching import (
    attentions,
    heads_by_layer,
    run,
    watching_maps,
    watching_outputs,
)
from headcount.model import Transformer
from headcount.study.records import Record
from headcount.tasks import Batch, Task

PROBES, PROBE_TOKENS = 16, 16384
"""Sequences of the probe of repeated tokens: at most so many, fewer where they are long."""

Progress = Callable[[str, int, int], None]
"""Told what is done, parts done, and parts in all."""


def inspect(
    record: Record,
    checkpoint: str,
    model: Transformer,
    task: Task,
    batches: Sequence[Batch],
    split: str,
    progress: Progress = lambda what, done, total: None,
) -> Inspection:
    """Look at a run's model, in eval mode, on a sample of its task's sequences."""
    progress("maps", 0, 4)
    found, layers = on_own_tokens(model, batches)
    found |= on_repeated_tokens(model, batches[0].inputs.size(1))
    progress("ablating single heads", 1, 4)
    ablator = Ablator(model, task, batches)
    singles = ablator.singles()
    progress("ablating pairs of heads", 2, 4)
    pairs = ablator.pairs()
    progress("importance", 3, 4)
    tallies = importance(model, task, batches)
    important = [tally.mean() for tally in tallies]
    n = sum(len(b.inputs) for b in batches)
    return Inspection(
        run_id=record.run_id,
        label=record.layout.label,
        checkpoint=checkpoint,
        split=split,
        n_sequences=n,
        seq_len=batches[0].inputs.size(1),
        loss=ablator.loss,
        loss_unit=task.loss_unit,
        heads=heads_by_layer(model),
        scores=found,
        layers=layers,
        ablations=singles,
        pairs=pairs,
        importance=Score(
            title="Gradient importance",
            unit="of the layer's ℓ2 norm",
            definition="E|Att_h(x)ᵀ ∂L(x)/∂Att_h(x)|, normalised in each layer (Michel et al. 2019)",
            protocol=f"{n} sequences of the {split} split",
            mean=[normalised(mean) for mean, _ in important],
            half_width=[[_known(h / _norm(mean)) for h in half] for mean, half in important],
        ),
        agreement={
            # Ranks within a layer and across: the importance before each layer is normalised.
            kind: agreement([mean for mean, _ in important], singles[kind])
            for kind in ABLATIONS
        },
    )


def on_own_tokens(
    model: Transformer, batches: Sequence[Batch]
) -> tuple[dict[str, Score], list[Layer]]:
    """Entropy, distance and previous-token score, and how alike the heads are, on a task's sequences."""
    heads = heads_by_layer(model)
    n, t = sum(len(b.inputs) for b in batches), batches[0].inputs.size(1)
    tallies = {name: _tallies(n, heads) for name in ("entropy", "distance", "previous_token")}
    apart = [torch.zeros(h, h, dtype=torch.float64) for h in heads]
    compared = [0] * len(heads)
    alike = [
        Alikeness(attention.layout.n_heads, attention.layout.d_head)
        for attention in attentions(model)
    ]
    stride = max(1, t // QUERIES)
    rows = slice(0, 0)

    def see(layer: int, first: int, weights: Tensor) -> None:
        tallies["entropy"][layer].add(rows, scores.entropy(weights))
        tallies["distance"][layer].add(rows, scores.distance(weights, first))
        tallies["previous_token"][layer].add(rows, *scores.previous_token(weights, first))
        some = weights[:, :, -first % stride :: stride]
        divergence = jensen_shannon(some)  # (B, H, H, t)
        apart[layer] += divergence.double().sum(dim=(0, 3)).cpu()
        compared[layer] += divergence.size(0) * divergence.size(3)

    def hear(layer: int, outputs: Tensor) -> None:
        alike[layer].add(outputs)

    with torch.inference_mode(), watching_maps(model, see), watching_outputs(model, hear):
        for batch in batches:
            rows = slice(rows.stop, rows.stop + len(batch.inputs))
            run(model, batch)
    where = f"{n} sequences of {t:,} tokens, the task's own"
    found = {
        "entropy": _score(
            tallies["entropy"],
            "Entropy of attention",
            "nats",
            "−Σ w ln w over keys, mean over queries; 0 looks at one token, ln n at n alike",
            where,
        ),
        "distance": _score(
            tallies["distance"],
            "Attention distance",
            "tokens",
            "Σ w·|query − key|, mean over queries",
            where,
        ),
        "previous_token": _score(
            tallies["previous_token"],
            "Previous-token score",
            SHARE,
            "weight on the token before, mean over queries (Olsson et al. 2022)",
            where,
        ),
    }
    layers = []
    for part, total, count in zip(alike, apart, compared, strict=True):
        cka = part.cka()
        layers.append(
            Layer(
                jensen_shannon=(total / max(count, 1)).tolist(),
                cka=cka.tolist(),
                effective_heads=effective_heads(cka),
            )
        )
    return found, layers


def on_repeated_tokens(model: Transformer, seq_len: int) -> dict[str, Score]:
    """Induction and duplicate-token scores on random tokens, repeated; empty for a model that takes
    vectors. Only queries in the second round count: their token came exactly once before where the
    vocabulary allows."""
    if model.shape.inputs != "tokens" or seq_len < 4:
        return {}
    heads = heads_by_layer(model)
    n = max(2, min(PROBES, PROBE_TOKENS // seq_len))
    tokens = scores.repeated_tokens(model.shape.n_inputs, seq_len, n)
    half = -(-seq_len // 2)
    induction, duplicate = _tallies(n, heads), _tallies(n, heads)
    rows = slice(0, 0)

    def see(layer: int, first: int, weights: Tensor) -> None:
        part = weights[:, :, max(0, half - first) :]
        first = max(first, half)
        if part.size(2):
            induction[layer].add(rows, *scores.induction(part, tokens[rows], first))
            duplicate[layer].add(rows, *scores.duplicate_token(part, tokens[rows], first))

    with torch.inference_mode(), watching_maps(model, see):
        for i in range(n):
            rows = slice(i, i + 1)
            run(model, Batch(tokens[rows], tokens[rows]))
    where = f"{n} sequences of {half} random tokens, repeated; the second round's queries"
    return {
        "induction": _score(
            induction,
            "Induction score",
            SHARE,
            "weight on the tokens behind earlier occurrences of the query's own (prefix matching, "
            "Olsson et al. 2022), mean over queries",
            where,
        ),
        "duplicate_token": _score(
            duplicate,
            "Duplicate-token score",
            SHARE,
            "weight on earlier occurrences of the query's own token, mean over queries",
            where,
        ),
    }


def _tallies(n_sequences: int, heads: list[int]) -> list[Tally]:
    return [Tally.empty(n_sequences, h) for h in heads]


def _score(tallies: list[Tally], title: str, unit: str, definition: str, protocol: str) -> Score:
    means = [tally.mean() for tally in tallies]
    return Score(
        title=title,
        unit=unit,
        definition=definition,
        protocol=protocol,
        mean=[[_known(m) for m in mean] for mean, _ in means],
        half_width=[[_known(h) for h in half] for _, half in means],
    )


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _norm(values: list[float]) -> float:
    return math.sqrt(sum(v * v for v in values)) or 1.0
