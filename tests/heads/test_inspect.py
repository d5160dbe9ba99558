"""`headcount inspect`: what it prints, what it writes, what it refuses, and how much memory it takes."""

import json
import re
import shutil
import subprocess
import sys
import textwrap

import pytest

from headcount.analysis.report import build
from headcount.errors import RequestError
from headcount.heads.commands import inspect_run
from headcount.heads.record import read
from headcount.study.store import Study, read_record
from headcount.tracking import content
from tests.end_to_end.test_command import headcount
from tests.heads.conftest import train


def test_the_command_writes_a_page_json_and_pictures_and_prints_the_same_json(mha):
    done = headcount("inspect", str(mha), "--sequences", "8", "--json", cwd=mha)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed == json.loads((mha / "heads" / "inspection.json").read_text())
    assert printed["heads"] == [4, 4] and printed["n_sequences"] == 8
    assert set(printed["scores"]) == {
        "entropy", "distance", "previous_token", "induction", "duplicate_token",
    }  # fmt: skip
    assert set(printed["ablations"]) == set(printed["pairs"]) == {"zero", "mean", "resample"}
    assert len(printed["pairs"]["mean"]) == 12  # six pairs a layer
    change = printed["ablations"]["zero"][0][0]
    assert set(change["slices"]) == {"second_occurrence", "later_occurrence"}
    assert change["low"] < change["loss"] < change["high"]
    seen = read(mha)
    assert seen is not None and seen.nominal_heads == 4 and 1 <= seen.effective_heads <= 4
    assert {p.name for p in (mha / "heads").glob("*.png")} == {
        "scores.png", "ablation.png", "maps.png",
    }  # fmt: skip


def test_the_page_is_self_contained_and_says_what_attention_is_not(mha):
    _, path = inspect_run(mha, 4)
    page = path.read_text()
    own = page[: page.index('id="specs"')]  # behind it stands plotly, which mentions its makers
    assert not re.findall(r'(?:src|href)="https?:', own)
    assert "Attention is routing, not an explanation" in page
    assert "Never averaged over heads" in page
    specs = json.loads(re.search(r'id="specs">(.*?)</script>', page, re.S)[1])
    assert len(specs["maps"]["data"]) == 8  # one map a head, one shown at a time
    assert [t["visible"] for t in specs["maps"]["data"]] == [True] + [False] * 7
    shown = specs["ablation_zero"]["data"][0]
    assert len(shown["z"]) == 2 and len(shown["z"][0]) == 4
    assert "head 1.3: " in shown["text"][1][3]


def test_inspecting_twice_gives_the_same_and_changes_nothing_else(mha):
    before = {p: p.read_bytes() for p in mha.rglob("*") if p.is_file() and "heads" not in p.parts}
    first, _ = inspect_run(mha, 6)
    assert inspect_run(mha, 6)[0] == first
    assert {p: p.read_bytes() for p in before} == before


def test_a_task_of_vectors_has_no_token_scores(tmp_path):
    folder = train(
        tmp_path, "model.n_heads=2", base=("task=nearest_point", "task.eval_sequences=32")
    )
    seen, _ = inspect_run(folder, 4)
    assert set(seen.scores) == {"entropy", "distance", "previous_token"}
    assert seen.loss_unit == "NMSE" and seen.ablations["zero"][0][0].accuracy is None


def test_mla_and_the_reference_backend_can_be_looked_into(tmp_path):
    for overrides in (
        ["attention=mla", "model.n_heads=4"],
        ["model.backend=torch_mha", "model.position=learned", "model.n_heads=4"],
    ):
        seen, _ = inspect_run(train(tmp_path, *overrides), 4)
        assert seen.heads == [4, 4]


def test_what_is_wrong_is_said_in_one_line(mha, tmp_path):
    for arguments, line in (
        (["nope"], "run nope: no run's folder"),
        ([str(mha), "--sequences", "1"], "sequences=1: valid: at least 2"),
    ):
        done = headcount("inspect", *arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1 and line in done.stderr, done.stderr
    assert not list(tmp_path.iterdir())
    (tmp_path / "record.json").write_text((mha / "record.json").read_text())
    with pytest.raises(
        RequestError, match=r"best.ckpt is missing; valid: a run with its checkpoint"
    ):
        inspect_run(tmp_path, 4)


LONG = textwrap.dedent(
    """
    import resource, sys, torch
    torch.set_num_threads(1)
    from tests.model.shapes import small_shape
    from headcount.heads.inspection import on_own_tokens, on_repeated_tokens
    from headcount.layout import HeadLayout
    from headcount.model import Transformer
    from headcount.tasks import Batch
    t = 4096
    layout = HeadLayout(128, 16, 16, 8)
    model = Transformer(small_shape(layout, n_layers=int(sys.argv[1]), max_len=t)).eval()
    tokens = torch.randint(40, (2, t))
    found, layers = on_own_tokens(model, [Batch(tokens[:1], tokens[:1]), Batch(tokens[1:], tokens[1:])])
    found |= on_repeated_tokens(model, t)
    assert len(found) == 5 and len(found["entropy"].mean[0]) == 16
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    """
)


@pytest.mark.slow
def test_a_context_of_4096_with_16_heads_stays_under_4_gb():
    """Two layers of 16 maps would take 2.1 GB whole, and several times that on the way. The peak of
    the whole process is read, PyTorch included."""
    done = subprocess.run(
        [sys.executable, "-c", LONG, "2"], capture_output=True, text=True, check=True
    )
    peak = int(done.stdout)
    print(f"peak of the process: {peak / 1e9:.2f} GB")
    assert peak < 4e9


def test_the_study_shows_effective_against_nominal_heads_and_links_the_page(gqa, tmp_path):
    shutil.copytree(gqa.parents[1], tmp_path / "s")
    folder = tmp_path / "s" / "runs" / gqa.name
    study = Study(tmp_path / "s")
    assert "effective_heads" not in build(study, pictures=0).read_text()
    seen, page = inspect_run(folder, 4)
    report = build(study, pictures=0).read_text()
    assert f'<a href="../runs/{gqa.name}/heads/index.html">heads</a>' in report
    assert (study.report / f"../runs/{gqa.name}/heads/index.html").resolve() == page.resolve()
    specs = json.loads(re.search(r'id="specs">(.*?)</script>', report, re.S)[1])
    (trace,) = specs["c0-effective_heads"]["data"]
    assert trace["x"] == [4] and trace["y"] == [pytest.approx(seen.effective_heads)]


def test_the_pictures_are_the_runs_media_in_wandb(gqa):
    inspect_run(gqa, 4)
    shown = content.media(read_record(gqa / "record.json"), gqa)
    assert {"heads/scores", "heads/ablation", "heads/maps"} <= set(shown)


def test_the_report_imports_no_torch():
    """Reading inspections must not bring it back."""
    code = "import sys, headcount.analysis.report; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
