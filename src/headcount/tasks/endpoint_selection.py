"""Endpoint selection: name the first or the second endpoint of an edge.

The input is (u, v, i, #): (u, v) an edge of the complete digraph on n vertices, i ∈ {1, 2}. The
answer, u or v, is read at #. One attention-only layer with one head mixes u and v with weights that
cannot depend on both i and the content freely enough, and is capped; two heads solve it.

What is asked is whether a layout can *represent* the function, so all 2·n·(n−1) inputs are both the
training and the evaluation set: there is nothing to generalise to.
"""

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor

from headcount.seeding import generator
from headcount.task_config import EndpointSelection
from headcount.tasks.base import IGNORE, Batch, Split, Task


class EndpointSelectionTask(Task):
    """Tokens: 0 … n−1 vertices, n and n+1 the indices 1 and 2, n+2 the read-out mark #."""

    has_accuracy = True

    def __init__(self, config: EndpointSelection) -> None:
        self.config = config
        n = config.n_vertices
        u, v, i = torch.meshgrid(torch.arange(n), torch.arange(n), torch.arange(2), indexing="ij")
        u, v, i = (x[u != v] for x in (u, v, i))
        mark = torch.full_like(u, n + 2)
        self.inputs = torch.stack((u, v, n + i, mark), dim=1)  # (2·n·(n−1), 4)
        self.targets = torch.full_like(self.inputs, IGNORE)
        self.targets[:, -1] = torch.where(i == 0, u, v)
        self.data_hash = hashlib.sha256(self.inputs.numpy().tobytes()).hexdigest()

    def train_batch(self, seed: int, step: int) -> Batch:
        """All inputs where the batch has room for them, else a random part of them."""
        n, size = len(self.inputs), self.config.batch_size
        if size >= n:
            return Batch(self.inputs, self.targets)
        chosen = torch.randperm(n, generator=generator(seed, "data", step))[:size]
        return Batch(self.inputs[chosen], self.targets[chosen])

    def eval_batches(self, split: Split) -> Iterator[Batch]:
        size = self.config.eval_batch_size
        for i in range(0, len(self.inputs), size):
            yield Batch(self.inputs[i : i + size], self.targets[i : i + size])

    def slices(self, batch: Batch) -> dict[str, Tensor]:
        second = batch.inputs[:, 2] == self.config.n_vertices + 1
        return {"first_endpoint": ~second, "second_endpoint": second}
