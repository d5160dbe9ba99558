"""A needle in a haystack: one fact, a key and its value, in long filler; at the end the key again.

Sequences are T, T/2 and T/4 long in equal parts; the rest of a shorter one is filler that nothing
sees. The fact stands at a place drawn evenly. Symbols: keys, then values, then filler.

Theory: two layers with one head each suffice (carry the key to its value, match it at the end). What
grows with T is the competition in one softmax: the matching score must exceed the filler's by log T,
which a narrow head can give only if d_head tells the keys from every filler symbol. So few, wide
heads hold out longer; a head with d_head far below T cannot even form every pattern (Bhojanapalli
2020). The loss by depth shows whether a place in the middle is lost.
"""

import torch
from torch import Tensor

from headcount.task_config import Needle
from headcount.tasks.base import IGNORE, Batch, GeneratedTask

DEPTHS = 4
"""Slices by how deep in the filler the fact stands, from the start to the question."""


class NeedleTask(GeneratedTask):
    has_accuracy = True

    def __init__(self, config: Needle) -> None:
        super().__init__(config)
        self.config = config
        self.lengths = torch.tensor([config.seq_len // 4, config.seq_len // 2, config.seq_len])

    def draw(self, n: int, g: torch.Generator) -> Batch:
        c = self.config
        length = self.lengths[torch.arange(n) % len(self.lengths)]  # (n,)
        inputs = torch.randint(c.n_filler, (n, c.seq_len), generator=g) + c.n_keys + c.n_values
        key = torch.randint(c.n_keys, (n,), generator=g)
        value = torch.randint(c.n_values, (n,), generator=g) + c.n_keys
        # The fact's two tokens end before the question, which is a sequence's last token.
        place = (torch.rand(n, generator=g) * (length - 2)).long()
        row = torch.arange(n)
        inputs[row, place] = key
        inputs[row, place + 1] = value
        inputs[row, length - 1] = key
        targets = torch.full_like(inputs, IGNORE)
        targets[row, length - 1] = value
        return Batch(inputs, targets)

    def slices(self, batch: Batch) -> dict[str, Tensor]:
        """By length, by depth, and by both."""
        length = batch.scored.int().argmax(dim=1) + 1  # (B,), one scored position a row
        place = (batch.inputs < self.config.n_keys).int().argmax(dim=1)
        depth = place * DEPTHS // (length - 2)
        by_length = {f"length_{n}": length == n for n in self.lengths.tolist()}
        by_depth = {f"depth_{d + 1}_of_{DEPTHS}": depth == d for d in range(DEPTHS)}
        both = {
            f"{name}_{deep}": at & down
            for name, at in by_length.items()
            for deep, down in by_depth.items()
        }
        return {**by_length, **by_depth, **both}
