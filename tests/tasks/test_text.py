"""A user's own text: what is read, how it is split, tokenised and scored, and what is refused."""

import json
import math
import subprocess
import sys

import polars as pl
import pytest
import torch

from headcount.errors import RequestError
from headcount.hydra_app import compose
from headcount.model import KVCache, Transformer
from headcount.task_config import TextFiles
from headcount.tasks import build_task
from headcount.tasks.base import IGNORE, Batch
from headcount.tasks.text import repeated
from headcount.text.corpus import prepare
from headcount.text.splits import passages
from headcount.training.evaluation import evaluate

WORDS = [
    "the",
    "whale",
    "sea",
    "ship",
    "captain",
    "harpoon",
    "deck",
    "wind",
    "sail",
    "line",
    "oar",
    "lamp",
    "night",
    "storm",
]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADCOUNT_CACHE", str(tmp_path / "cache"))


def text(seed, n_words=400):
    g = torch.Generator().manual_seed(seed)
    chosen = torch.randint(len(WORDS), (n_words,), generator=g).tolist()
    return "".join(WORDS[i] + ("\n" if k % 12 == 11 else " ") for k, i in enumerate(chosen))


@pytest.fixture
def folder(tmp_path):
    """Twenty documents: plain text, a JSONL and a Parquet; an empty file, and one of two bytes."""
    at = tmp_path / "texts"
    (at / "deep").mkdir(parents=True)
    for i in range(10):
        (at / "deep" / f"{i}.txt").write_text(text(i))
    rows = [{"text": text(i), "other": i} for i in range(10, 15)]
    (at / "a.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    pl.DataFrame({"text": [text(i) for i in range(15, 20)]}).write_parquet(at / "b.parquet")
    (at / "empty.txt").write_text("")
    (at / "short.txt").write_text("ab")
    (at / "picture.png").write_bytes(b"\x89PNG")
    return at


def written(task):
    """The text of each split as its tokens spell it, without the marks."""
    return {
        name: bytes(t for t in task.splits[name].tolist() if t != 256)
        for name in ("train", "val", "test")
    }


def test_every_document_of_a_folder_is_in_one_split_whole(task_of, folder):
    splits = written(task_of("text_files", path=folder, seq_len=32))
    documents = [text(i).encode() for i in range(20)] + [b"ab"]
    assert sum(map(len, splits.values())) == sum(map(len, documents))
    for document in documents:
        passages_of = passages(iter([document]), 1024)  # longer ones are cut at line ends
        assert all(sum(p in s for s in splits.values()) >= 1 for p in passages_of)


def test_no_passage_is_trained_on_and_scored(task_of, folder, tmp_path):
    (folder / "copy.txt").write_text(text(3))  # an exact copy goes where the first went
    corpus = task_of("text_files", path=folder, seq_len=32)
    splits = {
        name: set(map(tuple, units(corpus.splits[name].tolist())))
        for name in ("train", "val", "test")
    }
    assert not splits["train"] & splits["val"]
    assert not splits["train"] & splits["test"]
    assert not splits["val"] & splits["test"]


def units(tokens):
    found = []
    for token in tokens:
        if token == 256:
            found.append([])
        else:
            found[-1].append(token)
    return found


@pytest.mark.parametrize("kind", ["txt", "jsonl", "parquet", "glob"])
def test_each_kind_of_file_alone(task_of, tmp_path, kind):
    documents = [text(i) for i in range(12)]
    path = tmp_path / f"one.{kind}"
    if kind == "txt":
        path.write_text("".join(documents))
    elif kind == "jsonl":
        path.write_text("".join(json.dumps({"text": d}) + "\n" for d in documents))
    elif kind == "parquet":
        pl.DataFrame({"text": documents}).write_parquet(path)
    else:
        for i, document in enumerate(documents):
            (tmp_path / f"part{i:02}.md").write_text(document)
        path = tmp_path / "part*.md"
    splits = written(task_of("text_files", path=path, seq_len=32))
    assert sum(map(len, splits.values())) == len("".join(documents))
    assert all(splits.values())


def test_bytes_that_are_no_utf8_are_kept_as_they_are(task_of, tmp_path):
    g = torch.Generator().manual_seed(0)
    content = bytes(torch.randint(256, (20_000,), generator=g).tolist())
    (tmp_path / "raw.txt").write_bytes(content)
    splits = written(task_of("text_files", path=tmp_path / "raw.txt", seq_len=32))
    assert sorted(b"".join(splits.values())) == sorted(content)


def test_sequences_are_pieces_of_the_split_and_targets_the_next_tokens(task_of, folder):
    task = task_of("text_files", path=folder, seq_len=32)
    batch = task.train_batch(0, 0)
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    train = task.splits["train"].tobytes()
    assert all(row.numpy().astype("uint16").tobytes() in train for row in batch.inputs)
    again = task_of("text_files", path=folder, seq_len=32).train_batch(0, 0)
    assert torch.equal(again.inputs, batch.inputs)


def test_bpe_is_lossless_trained_on_training_text_and_kept(folder):
    keys = {"name": "text_files", "path": str(folder), "field": "text", "batch_size": 4}
    keys |= {"seq_len": 16, "eval_batch_size": 4, "eval_tokens": 512, "test_tokens": 10**6}
    keys |= {"document_mask": False}
    corpus = prepare(TextFiles(**keys, tokenizer="bpe", vocab_size=300))
    plain = prepare(TextFiles(**keys, tokenizer="bytes", vocab_size=None))
    assert corpus.n_symbols == 300
    for name in ("train", "val", "test"):
        tokens = corpus.tokens(name)
        assert sum(corpus.lengths[t] for t in tokens.tolist()) == plain.n_bytes[name]
        assert len(tokens) < 0.6 * len(plain.tokens(name))  # the words are few
        assert (tokens == 0).sum() == plain.n_units[name]
    # Asking again makes nothing: the tokenizer lies where its source's fingerprint says.
    made = (corpus.folder / "tokenizer.json").stat().st_mtime_ns
    assert prepare(TextFiles(**keys, tokenizer="bpe", vocab_size=300)).folder == corpus.folder
    assert (corpus.folder / "tokenizer.json").stat().st_mtime_ns == made
    # Text that is scored had no part in the merges.
    for path in folder.rglob("*"):
        if path.is_file():
            path.touch()
    again = prepare(TextFiles(**keys, tokenizer="bpe", vocab_size=300))
    assert again.folder != corpus.folder
    assert again.data_hash == corpus.data_hash


@pytest.mark.parametrize("keys", [{}, {"tokenizer": "bpe", "vocab_size": 280}])
def test_bits_per_byte_do_not_depend_on_the_evaluation_batch(task_of, model_of, folder, keys):
    keys = {**keys, "path": folder, "seq_len": 24, "test_tokens": 1001}
    scored = {
        size: evaluate(
            model_of("text_files", **keys),
            task_of("text_files", **keys, eval_batch_size=size),
            "test",
        )
        for size in (1, 7, 64)
    }
    assert scored[1].bits_per_byte == pytest.approx(scored[7].bits_per_byte, rel=1e-5)
    assert scored[1].bits_per_byte == pytest.approx(scored[64].bits_per_byte, rel=1e-5)
    task = task_of("text_files", **keys)
    targets = torch.cat([b.targets[b.scored] for b in task.eval_batches("test")])
    n_bytes = int(task.lengths[targets].sum())
    nats = scored[7].loss * len(targets)
    assert scored[7].bits_per_byte == pytest.approx(nats / math.log(2) / n_bytes)


@pytest.mark.parametrize("n_kv_heads", [1, 2])
def test_packed_documents_do_not_see_one_another(folder, n_kv_heads):
    """A document's outputs are those of the document alone, for MHA and with a shared KV head."""
    overrides = [f"task.path={folder}", "task.seq_len=40", "task.document_mask=true"]
    size = ["model.d_model=16", "model.n_heads=2", f"model.n_kv_heads={n_kv_heads}"]
    config = compose(["task=text_files", *overrides, *size, "logger=none"])
    task, model = build_task(config), Transformer(config.shape, seed=3)
    tokens = torch.tensor([[256, 65, 66, 67, 256, 70, 71, 72, 73]])
    batch = task._marked(Batch(tokens, tokens))
    assert batch.documents.tolist() == [[1, 1, 1, 1, 2, 2, 2, 2, 2]]
    packed = model(batch.inputs, documents=batch.documents)
    assert torch.allclose(packed[:, :4], model(tokens[:, :4]), atol=1e-5)
    # RoPE knows distances alone, so the second document need not begin at the first place.
    assert torch.allclose(packed[:, 4:], model(tokens[:, 4:]), atol=1e-5)
    assert not torch.allclose(packed, model(tokens), atol=1e-3)
    with pytest.raises(ValueError, match="no cache"):
        model(tokens, cache=KVCache(config.shape, 1, 40), documents=batch.documents)


def test_a_uniform_model_takes_eight_bits_a_byte(task_of, folder):
    task = task_of("moby_dick")
    batch = next(task.eval_batches("val"))
    losses = task.losses(torch.zeros(*batch.inputs.shape, 256), batch)
    assert losses.sum().item() / math.log(2) / task.n_bytes(batch) == pytest.approx(8)


def test_in_context_repeats_are_pairs_seen_before():
    inputs = torch.tensor([[1, 2, 1, 2, 3, 2]])
    targets = torch.tensor([[2, 1, 2, 3, 2, IGNORE]])
    assert repeated(Batch(inputs, targets)).tolist() == [False, False, True, False, False]


@pytest.mark.parametrize(
    ("files", "keys", "line"),
    [
        ({"a.txt": b""}, {}, "has 0 distinct passages of text, too few for three splits"),
        ({"a.txt": b"a few words"}, {}, "has 1 distinct passages"),
        ({"a.jsonl": b'{"text": "x"}\nnot json\n'}, {}, r"a.jsonl:2 is not JSON"),
        ({"a.jsonl": b'["x"]\n'}, {}, r"a.jsonl:1 is not a JSON object"),
        (
            {"a.jsonl": b'{"body": "x"}\n'},
            {},
            "task.field=text: .*:1 has no such field; valid: body",
        ),
        ({"a.jsonl": b'{"text": 3}\n'}, {}, "holds int, no text there"),
        ({"a.parquet": b"PAR0"}, {}, "a.parquet is not a Parquet file"),
        (
            {"a.txt": b"".join(b"caf\xe9 %d\n" % i for i in range(4000))},
            {"tokenizer": "bpe", "vocab_size": 300},
            "task.tokenizer=bpe needs UTF-8, and the text has byte 0xe9",
        ),
        ({"a.txt": b"word \n" * 40}, {"tokenizer": "bpe"}, "task.vocab_size=None with"),
        ({"a.txt": b"word \n" * 40}, {"vocab_size": 300}, "task.vocab_size=300 with"),
        ({"a.bin": b"x"}, {}, "no such file, or nothing in it"),
    ],
)
def test_what_cannot_be_used_is_one_clear_line(task_of, tmp_path, files, keys, line):
    at = tmp_path / "bad"
    at.mkdir()
    for name, content in files.items():
        (at / name).write_bytes(content)
    with pytest.raises(RequestError, match=line) as caught:
        task_of("text_files", path=at, seq_len=8, **keys)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "cache").rglob("*.tokens"))


def test_a_corpus_shorter_than_a_sequence_is_refused(task_of, folder):
    with pytest.raises(
        RequestError, match=r"task.seq_len=60000: the training split has \d+ tokens"
    ):
        task_of("text_files", path=folder, seq_len=60000)


def test_the_command_refuses_before_it_writes(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"")
    command = [sys.executable, "-m", "headcount.cli", "train", "task=text_files"]
    command += [f"task.path={tmp_path}/a.txt", f"paths.results={tmp_path}/results", "logger=none"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "too few for three splits" in done.stderr
    assert not (tmp_path / "results").exists()


def test_a_hugging_face_data_set_from_local_files(task_of, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    documents = [text(i) for i in range(20)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": d}) + "\n" for d in documents))
    keys = {"dataset": "json", "data_files": path, "seq_len": 32}
    whole = task_of("hf_text", **keys)
    streamed = task_of("hf_text", **keys, streaming="true")
    assert whole.data_hash == streamed.data_hash
    assert sum(map(len, written(whole).values())) == len("".join(documents))
    few = task_of("hf_text", **keys, max_documents=10)
    assert sum(map(len, written(few).values())) == len("".join(documents[:10]))
    with pytest.raises(RequestError, match=r"^task.dataset=nowhere/none: "):
        task_of("hf_text", dataset="nowhere/none", seq_len=32)


@pytest.mark.slow
def test_a_large_file_takes_little_memory(tmp_path):
    """500 MB of text stay under 2 GB of resident memory, preparation and a training batch included."""
    block = "".join(text(i, 2000) for i in range(80)).encode()
    with open(tmp_path / "large.txt", "wb") as file:
        for i in range(500_000_000 // len(block) + 1):
            file.write(f"part {i}\n".encode() + block)
    assert (tmp_path / "large.txt").stat().st_size > 500_000_000
    code = """
import resource, sys
from headcount.hydra_app import compose
from headcount.tasks import build_task
task = build_task(compose(["task=text_files", "task.path=" + sys.argv[1], "logger=none"]))
task.train_batch(0, 0)
print(sum(len(t) for t in task.splits.values()))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "large.txt")]
    n_tokens, kilobytes = map(
        int, subprocess.run(command, capture_output=True, check=True).stdout.split()
    )
    assert n_tokens > 500_000_000
    assert kilobytes * 1024 < 2e9
