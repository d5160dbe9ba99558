"""Next-token prediction on text: the user's own, and what it shares with the novel.

Sequences are packed: a training sequence begins anywhere in its split and runs over the ends of
documents, which a mark announces. Evaluation takes adjacent windows, every token once.

Theory gives no number for text: quality is a shallow U over n_heads at fixed d_model (Vaswani 2017,
Table 3 A), with one head worst, and the narrowest heads losing again. Where the ends lie depends on
width, context and data, which is why it is an experiment.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from headcount.seeding import generator
from headcount.task_config import HFText, MobyDick, TextFiles
from headcount.tasks.base import Batch, Split, Task, position_slices, windows
from headcount.text.corpus import prepare

RARE_SHARE = 0.1
"""The rarest symbols that together make up this share of the training text are rare."""

COUNTED = 10_000_000
"""Training tokens over which frequencies are counted."""


class TextTask(Task):
    """Next-token prediction on splits of tokens, each (n,) and array-like.

    lengths: bytes that each symbol stands for, (n_symbols,). limits: tokens scored of a split, None
    for all. unit: what a symbol is called in slices."""

    has_accuracy = False

    def __init__(
        self,
        config: MobyDick | TextFiles | HFText,
        splits: Mapping[str, Any],
        lengths: Tensor,
        limits: dict[Split, int | None],
        unit: str,
    ) -> None:
        self.config = config
        self.splits = splits
        self.lengths = lengths
        self.limits = limits
        self.unit = unit
        self.is_rare = rare(as_tokens(splits["train"][:COUNTED]), len(lengths))

    def train_batch(self, seed: int, step: int) -> Batch:
        text, t = self.splits["train"], self.config.seq_len
        size, g = (self.config.batch_size,), generator(seed, "data", step)
        starts = torch.randint(len(text) - t, size, generator=g)
        sequences = torch.stack([as_tokens(text[i : i + t + 1]) for i in starts.tolist()])
        return self._marked(Batch(sequences[:, :-1], sequences[:, 1:]))  # each (B, T)

    def eval_batches(self, split: Split) -> Iterator[Batch]:
        limit = self.limits[split]
        text = self.splits[split][: None if limit is None else limit + 1]
        found = windows(as_tokens(text), self.config.seq_len, self.config.eval_batch_size)
        return map(self._marked, found)

    def _marked(self, batch: Batch) -> Batch:
        """The batch with its documents told apart, where the task keeps them from one another."""
        return batch

    def n_bytes(self, batch: Batch) -> int:
        return int(self.lengths[batch.targets[batch.scored]].sum())

    def symbols(self, tokens: Tensor) -> list[str]:
        """Printable bytes as the character they are; everything else by number."""
        if self.unit != "bytes":
            return super().symbols(tokens)
        return [
            chr(t) if 32 < t < 127 else {32: "␣", 10: "⏎"}.get(t, str(t)) for t in tokens.tolist()
        ]

    def slices(self, batch: Batch) -> dict[str, Tensor]:
        """By place, by how often the target comes in training, and by whether the pair of token and
        target stood in the sequence before, so that it can be copied."""
        rare, again = self.is_rare[batch.targets[batch.scored]], repeated(batch)
        return {
            **position_slices(batch),
            f"{self.unit}_rare": rare,
            f"{self.unit}_frequent": ~rare,
            "in_context_repeated": again,
            "in_context_new": ~again,
        }


class OwnTextTask(TextTask):
    """`text_files` and `hf_text`."""

    def __init__(self, config: TextFiles | HFText) -> None:
        corpus = prepare(config)
        self.data_hash = corpus.data_hash
        # BPE on a small corpus may stop short of the vocabulary asked for.
        lengths = torch.zeros(config.n_inputs, dtype=torch.long)
        lengths[: corpus.n_symbols] = torch.tensor(corpus.lengths)
        super().__init__(
            config,
            {name: corpus.tokens(name) for name in ("train", "val", "test")},
            lengths,
            {"val": config.eval_tokens, "test": config.test_tokens},
            {"bytes": "bytes", "bpe": "tokens"}[config.tokenizer],
        )
        self.end = corpus.end
        self.document_mask = config.document_mask

    def _marked(self, batch: Batch) -> Batch:
        if not self.document_mask:
            return batch
        return batch._replace(documents=(batch.inputs == self.end).cumsum(dim=1))


def as_tokens(piece: Any) -> Tensor:
    """(n,) of whatever a split is kept in → (n,) int64."""
    return torch.as_tensor(piece.astype("int64") if hasattr(piece, "astype") else piece).long()


def rare(tokens: Tensor, n_symbols: int) -> Tensor:
    """(n_symbols,), True for the rarest, which make up RARE_SHARE of the tokens."""
    counts = torch.bincount(tokens, minlength=n_symbols)
    order = counts.argsort()
    few = counts[order].cumsum(0) <= RARE_SHARE * counts.sum()
    is_rare = torch.zeros(n_symbols, dtype=torch.bool)
    is_rare[order[few]] = True
    return is_rare


def repeated(batch: Batch) -> Tensor:
    """(n_scored,), True where input and target stood side by side earlier in the sequence."""
    pairs = batch.inputs * (int(batch.targets.max()) + 1) + batch.targets.clamp(min=0)  # (B, T)
    pairs = pairs.masked_fill(~batch.scored, -1)
    ordered, order = pairs.sort(dim=1, stable=True)
    again = torch.zeros_like(batch.scored)
    again[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    return torch.zeros_like(again).scatter(1, order, again)[batch.scored]
