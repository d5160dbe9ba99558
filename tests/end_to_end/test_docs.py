"""Every command that the documentation shows is run here, in order, with a small budget."""

import json
import multiprocessing
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE, STDOUT

import pytest
from tests.end_to_end.test_command import ENVIRONMENT

from headcount import cli
from headcount.hydra_app import compose

ROOT = Path(__file__).parents[2]

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

BUDGET = ("trainer.max_steps=2", "optim.warmup_steps=1", "measure.repeats=3", "logger=none")
"""Added to whatever trains or measures: the command is proved, its result is not the point."""

NEEDS_SERVER = ("sync", "dashboard", "logger.mode=online")
"""Commands with these words are proved against a loopback server, in tests/tracking."""


def commands(page: Path) -> list[list[str]]:
    """The commands of a page's shell blocks, and those that stand indented as code."""
    text = page.read_text().replace("\\\n", " ")
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.S | re.M)
    indented = re.findall(r"^ {4}((?:headcount|make) .*)$", text, re.M)
    lines = [line for block in [*blocks, *indented] for line in block.splitlines()]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_command_of_a_page_runs(page, tmp_path):
    _a_users_own_files(tmp_path)
    for words in commands(page):
        program, *arguments = words
        if set(NEEDS_SERVER) & set(arguments):
            continue
        if program == "make":
            done = subprocess.run(
                ["make", "--dry-run", *arguments], cwd=ROOT, stdout=PIPE, stderr=STDOUT, text=True
            )
        else:
            assert program == "headcount", f"{page.name}: {shlex.join(words)}: not tested"
            arguments = [_first_run(tmp_path) if word == "RUN" else word for word in arguments]
            done = headcount(_on_a_budget(arguments), tmp_path)
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}"


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


def headcount(arguments: list[str], cwd: Path) -> subprocess.CompletedProcess:
    """A command in a process of its own, forked from one that has imported what takes seconds."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["headcount.study.run", "headcount.analysis.report"])
    shown = cwd / "shown.txt"
    process = forks.Process(target=_main, args=(arguments, cwd, shown))
    process.start()
    process.join(600)
    assert process.exitcode is not None, f"{shlex.join(arguments)}: still running"
    return subprocess.CompletedProcess(arguments, process.exitcode, shown.read_text())


def _main(arguments: list[str], cwd: Path, shown: Path) -> None:
    with open(shown, "w") as out:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(out.fileno(), stream.fileno())
    os.chdir(cwd)
    os.environ |= ENVIRONMENT | {"TMPDIR": str(cwd.parent)}
    sys.argv = ["headcount", *arguments]
    cli.main()


def _on_a_budget(arguments: list[str]) -> list[str]:
    if arguments[0] == "inspect" and "--sequences" not in arguments:
        return [*arguments, "--sequences", "4"]
    if arguments[0] not in ("train", "measure"):
        return arguments
    chosen = any(w.startswith(("task=", "experiment=")) for w in arguments)
    text = [] if chosen else ["task.batch_size=2", "task.eval_tokens=512"]
    return [*arguments, *BUDGET, *text]


def _first_run(folder: Path) -> str:
    """The run that a page trained, for `RUN` in its later commands."""
    records = sorted(folder.glob("results/*/runs/*/record.json"))
    trained = (r for r in records if json.loads(r.read_text())["config"]["origin"] is None)
    return str(next(trained).parent)


def _a_users_own_files(folder: Path) -> None:
    """The files that the pages speak of as the reader's own."""
    text = "It was the best of times, it was the worst of times, said the whale to no one. " * 400
    text = " ".join(f"{i} {w}" for i, w in enumerate(text.split()))
    (folder / "my-texts").mkdir()
    (folder / "my-texts" / "a.txt").write_text(text)
    (folder / "data").mkdir()
    passages = [text[i : i + 2000] for i in range(0, 40_000, 2000)]
    rows = "".join(json.dumps({"body": p, "text": p}) + "\n" for p in passages)
    (folder / "data" / "a.jsonl").write_text(rows)
    (folder / "notes.jsonl").write_text(rows)
