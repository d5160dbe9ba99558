"""Splitting a corpus so that no passage is trained on and scored.

The unit is the document. One longer than a passage is cut at line ends, so that a single long file
has a validation and a test split too. Of every ten units eight train, one validates and one tests;
a unit that came before goes where it went then, so an exact copy never crosses a split.
"""

import hashlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

PASSAGE_SHARE = 200
"""A passage is this part of the corpus, within bounds: enough of them for three even splits."""
PASSAGE_BYTES = (1 << 10, 1 << 16)

NAMES = ("train", "val", "test")
_LENGTH = struct.Struct("<Q")


def passage_size(total_bytes: int) -> int:
    """Bytes after which a document is cut at the next line end."""
    low, high = PASSAGE_BYTES
    return min(max(total_bytes // PASSAGE_SHARE, low), high)


def passages(blocks: Iterator[bytes], size: int) -> Iterator[bytes]:
    """Cut a document into units of about `size` bytes, at line ends, else at spaces, else anywhere;
    together they are the document."""
    held = b""
    for block in blocks:
        held += block
        while len(held) > 2 * size:
            cut = _cut(held, size)
            yield held[:cut]
            held = held[cut:]
    if held:
        yield held


def _cut(text: bytes, size: int) -> int:
    """The place after the first line end from `size` on, within the passage that follows."""
    for mark in (b"\n", b" "):
        found = text.find(mark, size, 2 * size)
        if found >= 0:
            return found + 1
    return size


class Splits:
    """Units as they come, written to one file a split; each with its length before it."""

    def __init__(self, folder: Path) -> None:
        self.paths = {name: folder / f"{name}.units" for name in NAMES}
        self.n_bytes = dict.fromkeys(NAMES, 0)
        self.n_units = dict.fromkeys(NAMES, 0)
        self._files: dict[str, BinaryIO] = {n: open(p, "wb") for n, p in self.paths.items()}  # noqa: SIM115
        self._went: dict[bytes, str] = {}

    @property
    def n_distinct(self) -> int:
        return len(self._went)

    def add(self, unit: bytes) -> None:
        key = hashlib.blake2b(unit, digest_size=8).digest()
        place = len(self._went) % 10
        name = self._went.setdefault(key, {8: "val", 9: "test"}.get(place, "train"))
        self._files[name].write(_LENGTH.pack(len(unit)) + unit)
        self.n_bytes[name] += len(unit)
        self.n_units[name] += 1

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def read_units(path: Path) -> Iterator[bytes]:
    """The units of one split, in order."""
    with open(path, "rb") as file:
        while head := file.read(_LENGTH.size):
            yield file.read(_LENGTH.unpack(head)[0])
