"""What the maps of each head say in numbers: where its weights go, never averaged over heads.

Every score is a mean over the queries to which it applies, over all sequences. weights below are
rows of attention maps, (B, n_heads, t, S), that begin at query `first`; every function returns the
score of each query, (B, n_heads, t), and the match scores with them where a query has a match,
(B, 1, t).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from headcount.seeding import generator
from headcount.tasks.base import EVAL_SEED


def entropy(weights: Tensor) -> Tensor:
    """−Σ_j w_j ln w_j in nats: 0 for one key, ln n for n keys alike."""
    return torch.special.entr(weights.float()).sum(-1)


def distance(weights: Tensor, first: int) -> Tensor:
    """Σ_j w_j |i − j|: the mean distance in tokens between a query and what it attends to."""
    return (weights.float() * (_places(weights, first) - _keys(weights)).abs()).sum(-1)


def previous_token(weights: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """The weight on the token before (Olsson et al. 2022); the first query has none."""
    return _mass(weights, (_keys(weights) == _places(weights, first) - 1)[None])


def duplicate_token(weights: Tensor, tokens: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """The weight on earlier occurrences of the query's own token. tokens: (B, S)."""
    return _mass(weights, _same(weights, tokens, tokens, first))


def induction(weights: Tensor, tokens: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """The weight on the tokens that stand right behind earlier occurrences of the query's own token:
    the prefix-matching score of Olsson et al. 2022. tokens: (B, S)."""
    before = tokens.roll(1, dims=1)
    before[:, 0] = -1  # nothing stands before the first
    return _mass(weights, _same(weights, tokens, before, first))


def repeated_tokens(n_symbols: int, seq_len: int, n_sequences: int) -> Tensor:
    """Probe for the match scores, (n_sequences, seq_len): a round of random tokens, repeated once.
    A round holds each symbol once where the vocabulary is large enough."""
    g = generator(EVAL_SEED, "heads", "repeated tokens")
    half = -(-seq_len // 2)
    if half <= n_symbols:
        rounds = torch.stack(
            [torch.randperm(n_symbols, generator=g)[:half] for _ in range(n_sequences)]
        )
    else:
        rounds = torch.randint(n_symbols, (n_sequences, half), generator=g)
    return torch.cat((rounds, rounds), dim=1)[:, :seq_len]


def _places(weights: Tensor, first: int) -> Tensor:
    """(t, 1) positions of the queries."""
    return torch.arange(first, first + weights.size(2), device=weights.device)[:, None]


def _keys(weights: Tensor) -> Tensor:
    return torch.arange(weights.size(3), device=weights.device)


def _same(weights: Tensor, tokens: Tensor, at_keys: Tensor, first: int) -> Tensor:
    """(B, t, S): whether an earlier key has, by `at_keys` (B, S), the token of the query."""
    own = tokens[:, first : first + weights.size(2), None]
    return (own == at_keys[:, None, :]) & (_keys(weights) < _places(weights, first))


def _mass(weights: Tensor, match: Tensor) -> tuple[Tensor, Tensor]:
    """Weight on the matching keys, and whether there are any."""
    match = match.unsqueeze(1)
    return (weights.float() * match).sum(-1), match.any(-1).expand(weights.size(0), 1, -1)


@dataclass
class Tally:
    """Sums and counts of one score for each sequence and head, from which mean and interval come."""

    sums: Tensor
    """(n_sequences, n_heads)."""
    counts: Tensor

    @classmethod
    def empty(cls, n_sequences: int, n_heads: int) -> "Tally":
        zeros = torch.zeros(n_sequences, n_heads, dtype=torch.float64)
        return cls(zeros, zeros.clone())

    def add(self, rows: slice, values: Tensor, applies: Tensor | None = None) -> None:
        """Count the values (B, n_heads, t) of some queries of the sequences `rows`; where given, only
        those that `applies` (B, 1, t) names."""
        mask = torch.ones_like(values[:, :1]) if applies is None else applies.to(values.dtype)
        self.sums[rows] += (values * mask).sum(-1).double().cpu()
        self.counts[rows] += mask.sum(-1).double().cpu()

    def mean(self) -> tuple[list[float], list[float]]:
        """Each head's mean and half the width of its normal 95% interval over sequences: the error of
        a ratio of sums (Cochran 1977, section 2.11). NaN where there is nothing to tell it by."""
        total = self.counts.sum(0)
        mean = self.sums.sum(0) / total
        n = (self.counts[:, :1] > 0).sum()
        residual = ((self.sums - mean * self.counts) ** 2).sum(0)
        half = 1.96 * (n / (n - 1) * residual).sqrt() / total
        return mean.tolist(), half.tolist()
