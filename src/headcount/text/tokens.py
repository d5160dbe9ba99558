"""Tokenizers: bytes, and byte-level BPE trained on the training split alone.

Both have one mark beside their tokens, END, which stands before every unit; it says where a document
begins and is predicted at the end of the one before. Both are lossless, so the bytes that tokens
stand for add up to the text, and bits per byte compare across tokenizers.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headcount.errors import RequestError

TRAINING_BYTES = 1 << 25
"""BPE is trained on the first 32 MiB of the training split: merges are settled long before."""

BATCH = 256
"""Units that are encoded at once."""

END = 0
"""The mark's token in BPE; for bytes it is 256, behind them."""


class Tokenizer(Protocol):
    n_symbols: int
    end: int
    """The mark before a unit."""

    def encode(self, units: Iterable[bytes]) -> Iterator[NDArray[np.uint16]]:
        """Tokens of each unit, the mark first."""

    def lengths(self) -> NDArray[np.int64]:
        """Bytes that each symbol stands for, (n_symbols,); 0 for the mark."""


class Bytes:
    n_symbols = 257
    end = 256

    def encode(self, units: Iterable[bytes]) -> Iterator[NDArray[np.uint16]]:
        for unit in units:
            tokens = np.empty(1 + len(unit), dtype=np.uint16)
            tokens[0] = self.end
            tokens[1:] = np.frombuffer(unit, dtype=np.uint8)
            yield tokens

    def lengths(self) -> NDArray[np.int64]:
        return np.array([1] * 256 + [0])


class BPE:
    """Byte-level BPE as GPT-2 has it, trained here; the file it is kept in is the tokenizers
    library's own."""

    end = END

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer as Library

        self.library = Library.from_file(str(path))
        self.n_symbols = self.library.get_vocab_size()

    @classmethod
    def train(cls, units: Iterable[bytes], vocab_size: int, path: Path) -> "BPE":
        from tokenizers import Tokenizer as Library
        from tokenizers import decoders, models, pre_tokenizers, trainers

        library = Library(models.BPE())
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        library.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=["<end>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        library.train_from_iterator(map(_decoded, _first(units, TRAINING_BYTES)), trainer)
        library.save(str(path))
        return cls(path)

    def encode(self, units: Iterable[bytes]) -> Iterator[NDArray[np.uint16]]:
        for batch in _batches(map(_decoded, units), BATCH):
            for found in self.library.encode_batch_fast(batch, add_special_tokens=False):
                yield np.array([self.end, *found.ids], dtype=np.uint16)

    def lengths(self) -> NDArray[np.int64]:
        # The byte-level alphabet writes each byte as one character.
        found = np.zeros(self.n_symbols, dtype=np.int64)
        for token, i in self.library.get_vocab().items():
            found[i] = 0 if i == self.end else len(token)
        return found


def _decoded(unit: bytes) -> str:
    try:
        return unit.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"task.tokenizer=bpe needs UTF-8, and the text has byte 0x{unit[error.start]:02x} in "
            f"{unit[max(0, error.start - 20) : error.start + 20]!r}; valid: tokenizer=bytes, or "
            "UTF-8 files"
        ) from None


def _first(units: Iterable[bytes], n_bytes: int) -> Iterator[bytes]:
    for unit in units:
        yield unit
        n_bytes -= len(unit)
        if n_bytes <= 0:
            return


def _batches(items: Iterable[str], size: int) -> Iterator[list[str]]:
    batch: list[str] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
