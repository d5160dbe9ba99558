"""MQAR with keys of two parts: (A, X), (A, Y), (B, X), (B, Y), … each with a value of its own.

The keys of a sequence are all pairs of √k first and √k second parts, so neither part alone tells
the value. Places, distances and the power law are MQAR's, at three tokens a pair; first parts come
from [1, V/3), second ones from [V/3, 2V/3), values from [2V/3, V). The target stands at the
repeated second part.

Theory: both parts must arrive at the value's place, from one and from two places back, and at the
question likewise: two attention patterns in the first layer where MQAR needs one. So n_heads=2
should beat n_heads=1 at two layers (one head averages the two parts, which a wide head can still
tell apart), and narrow heads lose as in MQAR.
"""

import math

import torch
from torch import Tensor

from headcount.tasks.mqar import RecallTask, distinct


class CompositionalMQARTask(RecallTask):
    width = 3

    def keys(self, n: int, k: int, g: torch.Generator) -> Tensor:
        third, side = self.vocab_size // 3, math.isqrt(k)
        first = 1 + distinct(n, third - 1, side, g)
        second = third + distinct(n, third, side, g)
        grid = torch.stack(
            (first.repeat_interleave(side, dim=1), second.repeat(1, side)), dim=-1
        )  # (n, k, 2)
        order = distinct(n, k, k, g)  # a permutation a row
        return grid.gather(1, order[..., None].expand_as(grid))
