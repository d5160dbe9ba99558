"""Induction: a round of random tokens, repeated to the end (the tokens of Olsson et al. 2022).

Each sequence has a round of its own length, T/4 to T/2, so that no fixed distance finds the answer:
the match must be made by content. Scored is every next token from the first repetition on.

Theory: two layers with one head each, one that looks at the token before and one that looks behind
the earlier match (an induction head). One layer cannot, whatever its heads; more heads than one a
layer add nothing but narrowness, which hurts once d_head is too small to tell the vocabulary apart.
Attention alone suffices.
"""

import torch
from torch import Tensor

from headcount.task_config import Induction
from headcount.tasks.base import IGNORE, Batch, GeneratedTask


class InductionTask(GeneratedTask):
    has_accuracy = True

    def __init__(self, config: Induction) -> None:
        super().__init__(config)
        self.seq_len = config.seq_len
        self.vocab_size = config.vocab_size

    def draw(self, n: int, g: torch.Generator) -> Batch:
        t = self.seq_len
        rounds = torch.randint(t // 4, t // 2 + 1, (n, 1), generator=g)
        place = torch.arange(t + 1)
        tokens = torch.randint(self.vocab_size, (n, t // 2 + 1), generator=g)
        sequence = tokens.gather(1, place % rounds)  # (n, T + 1)
        # At the first repeated token nothing says yet that the round is over; from it on all is known.
        known = place[:-1] >= rounds
        return Batch(sequence[:, :-1], sequence[:, 1:].masked_fill(~known, IGNORE))

    def slices(self, batch: Batch) -> dict[str, Tensor]:
        """The second time a token comes, and every later time."""
        row, place = batch.scored.nonzero(as_tuple=True)
        rounds = batch.scored.int().argmax(dim=1)[row]  # the first scored place
        second = place + 1 < 2 * rounds
        return {"second_occurrence": second, "later_occurrence": ~second}
