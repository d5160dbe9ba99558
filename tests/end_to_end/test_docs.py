"""Every command that the documentation shows is run here, in order, with a small budget."""

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from tests.end_to_end.test_command import headcount

from headcount.hydra_app import compose

ROOT = Path(__file__).parents[2]

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

BUDGET = (
    "trainer.max_steps=2", "optim.warmup_steps=1", "task.batch_size=2", "task.eval_tokens=512",
    "measure.repeats=3", "logger=none",
)  # fmt: skip
"""Added to whatever trains or measures: the command is proved, its result is not the point."""


TEXT = ("task=moby_dick", "task=text_files", "task=hf_text")


def commands(page: Path) -> list[list[str]]:
    """The commands of a page's shell blocks, and those that stand indented as code."""
    text = page.read_text().replace("\\\n", " ")
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.S | re.M)
    indented = re.findall(r"^ {4}((?:headcount|make) .*)$", text, re.M)
    lines = [line for block in [*blocks, *indented] for line in block.splitlines()]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_command_of_a_page_runs(page, tmp_path):
    lay_out_text(tmp_path)
    for words in commands(page):
        program, *arguments = words
        if program == "make":
            done = subprocess.run(
                ["make", "--dry-run", *arguments], cwd=ROOT, capture_output=True, text=True
            )
        else:
            assert program == "headcount", f"{page.name}: {shlex.join(words)}: not tested"
            done = headcount(*_on_a_budget(arguments), cwd=tmp_path)
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize(
    "file",
    sorted((ROOT / "conf").rglob("*.yaml")),
    ids=lambda p: str(p.relative_to(ROOT / "conf")),
)
def test_the_command_on_top_of_a_configuration_composes(file):
    shown = re.findall(r"^#\s+headcount (train|measure|account) (.*)$", file.read_text(), re.M)
    if file.parent.name == "sweeper":
        return  # Hydra's own choice, shown by every experiment
    assert shown, f"{file}: no runnable command on top"
    for _, line in shown:
        overrides = [w for w in shlex.split(line) if w != "-m"]
        compose([w.partition(",")[0] if "[" not in w else w for w in overrides])


def _on_a_budget(arguments: list[str]) -> list[str]:
    if arguments[0] not in ("train", "measure"):
        return arguments
    task = [w for w in arguments if "endpoint" in w or "why_heads" in w]
    other = any(w.startswith("task=") and w not in TEXT for w in arguments)
    budget = [b for b in BUDGET if not (task and b.startswith("task."))]
    budget = [b for b in budget if not (other and b.startswith("task.eval_tokens"))]
    return [*arguments, *budget]


def lay_out_text(folder: Path) -> None:
    """The texts that the pages call my-texts/, data/*.jsonl and notes.jsonl."""
    words = [
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
    documents = [" ".join(f"{w}{(i * k) % 97}" for k, w in enumerate(words * 9)) for i in range(30)]
    for name in ("my-texts", "data"):
        (folder / name).mkdir()
    for i, document in enumerate(documents):
        (folder / "my-texts" / f"{i}.txt").write_text(document)
    rows = [json.dumps({"text": d, "body": d}) + "\n" for d in documents]
    (folder / "notes.jsonl").write_text("".join(rows))
    (folder / "data" / "notes.jsonl").write_text("".join(rows))
