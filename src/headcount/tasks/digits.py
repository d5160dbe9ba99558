"""Handwritten digits: 1,797 real 8×8 images in ten classes (UCI, as scikit-learn ships them), taken as
16 patches of 2×2 by an encoder that sees the whole image, and read at a class token.

Theory has no step here: with 17 inputs and d_head ≥ 17 a single head can form every pattern
(Bhojanapalli 2020), and most of the task is in the patches themselves. Expect a flat curve, with the
narrowest heads slightly worse: a task on which the count hardly matters.
"""

import functools
import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor

from headcount.seeding import generator
from headcount.task_config import Digits
from headcount.tasks.base import EVAL_SEED, Batch, Split, Task, answer_at_end

PATCH = 2
N_CLASSES = 10


class DigitsTask(Task):
    """Inputs: (four pixels in [0, 1], 0) for a patch, (0, 0, 0, 0, 1) for the class token, last."""

    has_accuracy = True

    def __init__(self, config: Digits) -> None:
        self.config = config
        images, labels = load()
        self.data_hash = hashlib.sha256(images.numpy().tobytes()).hexdigest()
        patches = images.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH)  # (n, 4, 4, 2, 2)
        inputs = torch.zeros(len(images), config.seq_len, PATCH * PATCH + 1)
        inputs[:, :-1, :-1] = patches.flatten(3).flatten(1, 2) / 16
        inputs[:, -1, -1] = 1
        # A fixed shuffle; of every ten images eight train, one validates, one tests.
        order = torch.randperm(len(images), generator=generator(EVAL_SEED, "digits"))
        tenth = torch.arange(len(order)) % 10
        self.splits = {
            name: answer_at_end(inputs[order[chosen]], labels[order[chosen]])
            for name, chosen in (("train", tenth < 8), ("val", tenth == 8), ("test", tenth == 9))
        }

    def train_batch(self, seed: int, step: int) -> Batch:
        train, g = self.splits["train"], generator(seed, "data", step)
        chosen = torch.randint(len(train.inputs), (self.config.batch_size,), generator=g)
        return Batch(train.inputs[chosen], train.targets[chosen])

    def eval_batches(self, split: Split) -> Iterator[Batch]:
        yield from self.splits[split].rows(self.config.eval_batch_size)

    def slices(self, batch: Batch) -> dict[str, Tensor]:
        digit = batch.targets[batch.scored]
        return {f"class_{k}": digit == k for k in range(N_CLASSES)}


@functools.cache
def load() -> tuple[Tensor, Tensor]:
    """All images, (1797, 8, 8) with values 0 to 16, and their classes, (1797,)."""
    from sklearn.datasets import load_digits

    found = load_digits()
    return torch.from_numpy(found.images).float(), torch.from_numpy(found.target).long()
