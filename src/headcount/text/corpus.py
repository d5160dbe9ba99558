"""A prepared corpus: three files of tokens, made once and found again by what they were made from."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headcount.config import Config
from headcount.errors import RequestError
from headcount.task_config import HFText, TextFiles
from headcount.text.sources import documents, find, fingerprint
from headcount.text.splits import NAMES, PASSAGE_BYTES, Splits, passage_size, passages, read_units
from headcount.text.tokens import BPE, Bytes, Tokenizer

VERSION = 1
"""Raised when the same source would be prepared differently."""


@dataclass(frozen=True)
class Corpus:
    """folder: where it lies. data_hash: SHA-256 of all tokens. n_bytes, n_tokens, n_units: by split.
    lengths: bytes that each symbol stands for."""

    folder: Path
    data_hash: str
    end: int
    n_symbols: int
    n_bytes: dict[str, int]
    n_tokens: dict[str, int]
    n_units: dict[str, int]
    lengths: list[int]

    def tokens(self, split: str) -> NDArray[np.uint16]:
        """A split's tokens, (n,), read from the file as they are needed."""
        return np.memmap(self.folder / f"{split}.tokens", dtype=np.uint16, mode="r")


def cache_folder() -> Path:
    """$HEADCOUNT_CACHE, else the user's own cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("HEADCOUNT_CACHE") or Path(home) / "headcount")


def prepare(config: TextFiles | HFText) -> Corpus:
    """The corpus of a text task, made now if it was not yet. RequestError, in one line, for a
    source that cannot be read, split or tokenised as asked; nothing is left behind then."""
    made_from = {
        "version": VERSION,
        "source": fingerprint(config),
        "field": config.field,
        "tokenizer": config.tokenizer,
        "vocab_size": config.vocab_size,
    }
    key = hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()[:16]
    folder = cache_folder() / "text" / key
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(prefix=f".{key}-", dir=folder.parent))
        try:
            _make(config, making)
            # Who comes second finds the same corpus there.
            if not folder.exists():
                os.rename(making, folder)
        finally:
            shutil.rmtree(making, ignore_errors=True)
    corpus = Corpus(folder=folder, **json.loads((folder / "corpus.json").read_text()))
    _refuse_short(config, corpus)
    return corpus


def prepare_text(configs: Iterable[Config]) -> None:
    """Prepare the text of every run of a study before any run starts: a text that cannot be used is a
    wrong request, and workers need not wait for one another."""
    for task in {c.task for c in configs if isinstance(c.task, TextFiles | HFText)}:
        prepare(task)


def _make(config: TextFiles | HFText, folder: Path) -> None:
    splits = Splits(folder)
    size = passage_size(_total_bytes(config))
    try:
        for _, blocks in documents(config):
            for unit in passages(blocks, size):
                splits.add(unit)
    finally:
        splits.close()
    if not splits.n_units["test"]:
        where = config.path if isinstance(config, TextFiles) else config.dataset
        raise RequestError(
            f"task={config.name}: {where} has {splits.n_distinct} distinct passages of "
            f"text, too few for three splits; valid: 10 documents, or {10 * PASSAGE_BYTES[0]} bytes"
        )
    tokenizer: Tokenizer = Bytes()
    if config.tokenizer == "bpe":
        assert config.vocab_size is not None  # the section's own check
        units = read_units(splits.paths["train"])
        tokenizer = BPE.train(units, config.vocab_size, folder / "tokenizer.json")
    digest, n_tokens = hashlib.sha256(), {}
    for name in NAMES:
        n_tokens[name] = 0
        with open(folder / f"{name}.tokens", "wb") as file:
            for tokens in tokenizer.encode(read_units(splits.paths[name])):
                data = tokens.tobytes()
                file.write(data)
                digest.update(data)
                n_tokens[name] += len(tokens)
        splits.paths[name].unlink()
    facts: dict[str, Any] = {
        "data_hash": digest.hexdigest(),
        "end": tokenizer.end,
        "n_symbols": tokenizer.n_symbols,
        "n_bytes": splits.n_bytes,
        "n_tokens": n_tokens,
        "n_units": splits.n_units,
        "lengths": tokenizer.lengths().tolist(),
    }
    (folder / "corpus.json").write_text(json.dumps(facts))


def _total_bytes(config: TextFiles | HFText) -> int:
    """Bytes of the source where they are known beforehand; of a data set the most that counts."""
    if isinstance(config, TextFiles):
        return sum(p.stat().st_size for p in find(config.path))
    return PASSAGE_BYTES[1] ** 2


def _refuse_short(config: TextFiles | HFText, corpus: Corpus) -> None:
    """Each training sequence needs seq_len + 1 tokens of the split; a shorter file is no trouble."""
    found = corpus.n_tokens["train"]
    if found < config.seq_len + 2:
        raise RequestError(
            f"task.seq_len={config.seq_len}: the training split has {found} tokens; "
            f"valid: 2 to {found - 2}, or more text"
        )
