"""Selective copying (Gu & Dao 2023): data tokens scattered among filler, then given in order.

A sequence is T − n places of filler 0 with n data tokens at random places, then n times the mark;
at the i-th mark the i-th data token is the target. Data tokens come from [1, V − 1); V − 1 is the
mark.

Theory: the answer's place must be counted, so one layer that attends by content or by place alone
cannot; two layers can, with one head that counts data tokens and one that fetches by the count.
Heads are not what limits it: expect little change with n_heads until d_head is too small to tell n
counts apart. The full setting (an MLP) makes the count easier to use.
"""

import torch
from torch import Tensor

from headcount.task_config import SelectiveCopy
from headcount.tasks.base import IGNORE, Batch, GeneratedTask
from headcount.tasks.mqar import distinct


class SelectiveCopyTask(GeneratedTask):
    has_accuracy = True

    def __init__(self, config: SelectiveCopy) -> None:
        super().__init__(config)
        self.seq_len = config.seq_len
        self.vocab_size = config.vocab_size
        self.n_data = config.n_data

    def draw(self, n: int, g: torch.Generator) -> Batch:
        k, context = self.n_data, self.seq_len - self.n_data
        data = torch.randint(1, self.vocab_size - 1, (n, k), generator=g)
        places = distinct(n, context, k, g).sort(dim=1).values
        inputs = torch.zeros(n, self.seq_len, dtype=torch.long)
        inputs.scatter_(1, places, data)
        inputs[:, context:] = self.vocab_size - 1
        targets = torch.full_like(inputs, IGNORE)
        targets[:, context:] = data
        return Batch(inputs, targets)

    def slices(self, batch: Batch) -> dict[str, Tensor]:
        """The first answer, the last, and those between."""
        order = torch.arange(self.n_data).repeat(len(batch.inputs))  # (n_scored,)
        first, last = order == 0, order == self.n_data - 1
        return {"answer_first": first, "answer_between": ~first & ~last, "answer_last": last}
