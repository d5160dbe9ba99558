"""A secret given through the environment or an override stands in no file of the study."""

import os
import subprocess
import sys

from tests.conftest import SMALL
from tests.tracking.conftest import give_cost

IN_ENVIRONMENT = "canary" + "e" * 34
IN_OVERRIDE = "canary" + "o" * 34


def test_no_file_of_a_study_holds_a_secret(logged, tmp_path):
    give_cost(logged("study=secrets"))
    command = [sys.executable, "-m", "headcount.cli", "train", *SMALL, "logger=wandb"]
    command += [f"paths.results={tmp_path}", "study=secrets"]
    command += [f"+hydra.job.env_set.WANDB_API_KEY={IN_OVERRIDE}"]
    secret = {"WANDB_API_KEY": IN_ENVIRONMENT, "MY_TOKEN": IN_ENVIRONMENT}
    environment = {k: v for k, v in os.environ.items() if k != "WANDB_SERVICE"} | secret
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert ended.returncode == 0, ended.stderr
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert any(p.suffix == ".wandb" for p in files)
    assert any(p.name == "run.log" for p in files)
    for path in files:
        content = path.read_bytes()
        assert IN_ENVIRONMENT.encode() not in content, path
        assert IN_OVERRIDE.encode() not in content, path
    assert "canary" not in ended.stdout + ended.stderr
