"""Multi-query associative recall, as Zoology defines it (Arora et al. 2023).

A sequence is k1 v1 k2 v2 …, then filler 0 in which every key stands once more, at an even offset
2i behind the pairs with p(i) ∝ a·i^(a−1), without replacement. At the repeated key its value is the
target; nothing else is scored. Keys are drawn without replacement from [1, V/2), values from
[V/2, V).

Theory: two layers do it with one head each, one that carries a key to its value's place and one that
finds the key's match. The match must tell V/2 keys apart within one head, so accuracy falls once
d_head is too small for that, and splitting d_model into more heads does not pay. Attention alone
suffices (model=attention_only model.n_layers=2); an MLP is not needed.
"""

from abc import abstractmethod

import torch
from torch import Tensor

from headcount.task_config import MQAR, CompositionalMQAR
from headcount.tasks.base import IGNORE, Batch, GeneratedTask, buckets


class RecallTask(GeneratedTask):
    """What MQAR and its compositional form share: keys of `width − 1` tokens and a value, one pair
    after another, and the keys again."""

    has_accuracy = True
    width: int
    """Places that a pair takes, and a repeated key with its gap."""

    def __init__(self, config: MQAR | CompositionalMQAR) -> None:
        super().__init__(config)
        self.seq_len = config.seq_len
        self.vocab_size = config.vocab_size
        self.n_pairs = sorted(set(config.n_pairs))
        self.power = config.power

    @abstractmethod
    def keys(self, n: int, k: int, g: torch.Generator) -> Tensor:
        """The keys of n sequences, (n, k, width − 1)."""

    def draw(self, n: int, g: torch.Generator) -> Batch:
        """n sequences; the i-th has the (i mod len)-th number of pairs."""
        inputs = torch.zeros(n, self.seq_len, dtype=torch.long)
        targets = torch.full_like(inputs, IGNORE)
        for i, k in enumerate(self.n_pairs):
            rows = slice(i, None, len(self.n_pairs))
            if n > i:
                self._fill(inputs[rows], targets[rows], k, g)
        return Batch(inputs, targets)

    def _fill(self, inputs: Tensor, targets: Tensor, k: int, g: torch.Generator) -> None:
        """Write sequences of k pairs into inputs and targets, (n, T)."""
        n, width, v = len(inputs), self.width, self.vocab_size
        first_value = (width - 1) * (v // width)
        keys = self.keys(n, k, g)  # (n, k, width − 1)
        values = first_value + distinct(n, v - first_value, k, g)  # (n, k)
        context = k * width
        inputs[:, :context] = torch.cat((keys, values[..., None]), dim=-1).flatten(1)
        space = (self.seq_len - context) // width
        weights = torch.arange(1, space + 1, dtype=torch.float64) ** (self.power - 1)
        gaps = torch.multinomial(weights.expand(n, -1), k, generator=g)  # (n, k), distinct
        places = context + width * gaps
        for part in range(width - 1):
            inputs.scatter_(1, places + part, keys[..., part])
        targets.scatter_(1, places + width - 2, values)

    def slices(self, batch: Batch) -> dict[str, Tensor]:
        """By number of pairs, and by the distance from a value to where it is asked for."""
        row, place = batch.scored.nonzero(as_tuple=True)
        answer = batch.targets[row, place]
        origin = (batch.inputs[row] == answer[:, None]).int().argmax(dim=1)
        pairs = batch.scored.sum(dim=1)[row]
        by_pairs = {f"pairs_{k}": pairs == k for k in self.n_pairs}
        return {**by_pairs, **buckets("distance", place - origin, self.seq_len)}


class MQARTask(RecallTask):
    width = 2

    def keys(self, n: int, k: int, g: torch.Generator) -> Tensor:
        return 1 + distinct(n, self.vocab_size // 2 - 1, k, g)[..., None]


def distinct(n: int, population: int, k: int, g: torch.Generator) -> Tensor:
    """n times k different numbers out of [0, population), in random order: (n, k)."""
    return torch.rand(n, population, generator=g).topk(k, dim=1).indices
