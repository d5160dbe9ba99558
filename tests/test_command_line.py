"""Wrong uses of the command line end in one line and status 2, before anything is read or written."""

import sys

import pytest

from headcount import cli


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["recommend"], "Missing argument 'study'"),
        (["report"], "Missing argument 'studies"),
        (["frobnicate"], "No such command 'frobnicate'"),
        (["recommend", "x", "--latency", "1"], "No such option: --latency"),
        (["recommend", "x", "--context", "abc"], "Invalid value for '--context'"),
        (["recommend", "x", "--tolerance", "nan"], "tolerance=nan: must be a number 0 or more"),
        (["recommend", "x", "--latency-ms", "inf"], "latency_ms=inf: must be a number above 0"),
        (["recommend", "x", "--latency-ms", "0"], "latency_ms=0: must be a number above 0"),
        (["report", "nowhere"], "study nowhere: no such study"),
        (
            ["train", "-m", "seed=0,1", "hydra.launcher.n_workers=abc"],
            "n_workers=abc: must be a whole",
        ),
        (["train", "-m", "seed=0,1", "hydra.launcher.n_workers=0"], "n_workers=0: must be a whole"),
        (["train", "optim.lr=inf"], "optim.lr=inf"),
        (["train", "=3"], "=3: names no key"),
        (["train", "protocol.name=zzz"], "protocol.name=zzz: valid: shared_lr, tuned"),
        (["train", "control.name=zzz"], "control.name=zzz: valid: fixed_d_model, "),
        (["train", "model.n_heads=true"], "model.n_heads=true: should be a number"),
        (["train", "optim.lr=true"], "optim.lr=true: should be a number"),
        (["train", "measure.contexts=[true]"], "measure.contexts=[true]: should be a number"),
        (["train", "trainer.strategy=fsdp"], "trainer.strategy=fsdp shards the gradients"),
        (["train", "measure.contexts=[16,16]"], "measure.contexts=[16, 16]: one stands twice"),
        (["recommend", "x", "--kv", "4XB"], "kv=4XB: not a size"),
    ],
)
def test_a_wrong_use_is_one_line(arguments, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["headcount", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    shown = capsys.readouterr()
    assert ended.value.code == 2
    assert shown.err.startswith("headcount: error: ") and shown.err.count("\n") == 1
    assert told in shown.err
    assert not list(tmp_path.iterdir())


def test_a_file_where_a_folder_should_be_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine" / "runs").mkdir(parents=True)
    (tmp_path / "mine" / "report").write_text("")
    monkeypatch.setattr(sys, "argv", ["headcount", "report", str(tmp_path / "mine")])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert f"{tmp_path}/mine/report: File exists" in capsys.readouterr().err
