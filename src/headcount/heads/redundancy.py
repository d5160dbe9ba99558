"""How alike the heads of a layer are: in where they look, and in what they read there."""

import math

import torch
from torch import Tensor

QUERIES = 256
"""Queries of a sequence, evenly spaced, on which maps are compared: each pair of heads costs a pass
over their maps."""


def jensen_shannon(weights: Tensor) -> Tensor:
    """Jensen–Shannon divergence of every pair of heads at each query, in bits: 0 where two heads look
    alike, 1 where they share no key. weights (B, H, t, S) → (B, H, H, t)."""
    weights = weights.float()
    own = torch.special.entr(weights).sum(-1)  # (B, H, t), nats
    n = weights.size(1)
    found = weights.new_zeros(weights.size(0), n, n, weights.size(2))
    for a in range(n - 1):
        mixed = (weights[:, a : a + 1] + weights[:, a + 1 :]) / 2
        apart = torch.special.entr(mixed).sum(-1) - (own[:, a : a + 1] + own[:, a + 1 :]) / 2
        found[:, a, a + 1 :] = found[:, a + 1 :, a] = apart.clamp(min=0) / math.log(2)
    return found


class Alikeness:
    """Linear CKA between the outputs of a layer's heads (Kornblith et al. 2019, section 3), gathered
    batch by batch: each token of each sequence is one sample."""

    def __init__(self, n_heads: int, d_head: int) -> None:
        self.n_heads, self.d_head = n_heads, d_head
        width = n_heads * d_head
        self.n = 0
        self.sums = torch.zeros(width, dtype=torch.float64)
        self.products = torch.zeros(width, width, dtype=torch.float64)

    def add(self, outputs: Tensor) -> None:
        """outputs: (B, T, n_heads, d_head)."""
        samples = outputs.flatten(2).flatten(0, 1).double().cpu()
        self.n += len(samples)
        self.sums += samples.sum(0)
        self.products += samples.T @ samples

    def cka(self) -> Tensor:
        """(n_heads, n_heads): ‖C_ab‖² / (‖C_aa‖ ‖C_bb‖) of the centred covariances, from 0 to 1. A
        head whose output never changes is like itself alone."""
        centred = self.products - torch.outer(self.sums, self.sums) / max(self.n, 1)
        blocks = centred.view(self.n_heads, self.d_head, self.n_heads, self.d_head)
        squares = blocks.square().sum(dim=(1, 3))  # ‖C_ab‖²
        norms = squares.diagonal().sqrt()
        found = squares / torch.outer(norms, norms)
        found = found.nan_to_num(0.0, 0.0, 0.0).clamp(0, 1)
        found.fill_diagonal_(1.0)
        return found


def effective_heads(alike: Tensor) -> float:
    """How many different heads a layer has: exp of the entropy of the eigenvalues of `alike` / n, the
    Vendi score (Friedman and Dieng 2023). n heads that share nothing count n, n copies count 1.
    alike: (n, n), 1 on the diagonal, positive semi-definite (as CKA is)."""
    if not len(alike):
        return 0.0
    share = torch.linalg.eigvalsh(alike.double() / len(alike)).clamp(min=0)
    return float(torch.special.entr(share).sum().exp())
