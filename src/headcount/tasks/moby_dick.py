"""Next-byte prediction on Moby-Dick, the corpus that ships with the package."""

import functools
import hashlib
import lzma
import re
from collections.abc import Iterator
from importlib.resources import files

import numpy as np
import torch
from torch import Tensor

from headcount.errors import HeadcountError
from headcount.seeding import generator
from headcount.task_config import MobyDick
from headcount.tasks.base import Batch, Split, Task, position_slices, windows

SHA256 = "fe282a57094ed62e7144fb7c804a9748fc1c909bf3b49d06e7276015f9f67240"

RARE_SHARE = 0.1
"""The rarest bytes that together make up this share of the training text are `bytes_rare`."""


class MobyDickTask(Task):
    """Bytes of the novel, split by chapter: of every ten, eight train, one validates, one tests."""

    data_hash = SHA256
    has_accuracy = False

    def __init__(self, config: MobyDick) -> None:
        self.config = config
        self.splits = split_by_chapter()
        counts = torch.bincount(self.splits["train"].long(), minlength=256)
        order = counts.argsort()
        rare = counts[order].cumsum(0) <= RARE_SHARE * counts.sum()
        self.is_rare = torch.zeros(256, dtype=torch.bool)
        self.is_rare[order[rare]] = True

    def train_batch(self, seed: int, step: int) -> Batch:
        text, t = self.splits["train"], self.config.seq_len
        starts = torch.randint(
            len(text) - t, (self.config.batch_size, 1), generator=generator(seed, "data", step)
        )
        sequences = text[starts + torch.arange(t + 1)].long()  # (B, T + 1)
        return Batch(sequences[:, :-1], sequences[:, 1:])

    def eval_batches(self, split: Split) -> Iterator[Batch]:
        text = self.splits[split]
        if split == "val":
            text = text[: self.config.eval_tokens + 1]
        return windows(text, self.config.seq_len, self.config.eval_batch_size)

    def n_bytes(self, batch: Batch) -> int:
        return batch.n_scored

    def slices(self, batch: Batch) -> dict[str, Tensor]:
        rare = self.is_rare[batch.targets[batch.scored]]
        return {**position_slices(batch), "bytes_rare": rare, "bytes_frequent": ~rare}


@functools.cache
def split_by_chapter() -> dict[str, Tensor]:
    """The bytes of each split, (n,) uint8. A chapter lies whole in one split."""
    splits: dict[str, list[bytes]] = {"train": [], "val": [], "test": []}
    for i, chapter in enumerate(re.split(rb"(?m)^(?=CHAPTER \d+\.)", corpus())):
        splits[{8: "val", 9: "test"}.get(i % 10, "train")].append(chapter)
    return {
        name: torch.from_numpy(np.frombuffer(b"".join(chapters), dtype=np.uint8).copy())
        for name, chapters in splits.items()
    }


def corpus() -> bytes:
    """The novel; HeadcountError if the shipped file is not the one this package was built with."""
    packed = files("headcount.tasks").joinpath("data/moby_dick.txt.xz").read_bytes()
    text = lzma.decompress(packed)
    if hashlib.sha256(text).hexdigest() != SHA256:
        raise HeadcountError("moby_dick: the shipped corpus is damaged (SHA-256 differs)")
    return text
