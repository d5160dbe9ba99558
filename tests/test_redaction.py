"""No secret is written down with a command."""

import pytest

from headcount.redaction import command_line


@pytest.mark.parametrize(
    ("argument", "written"),
    [
        ("+hydra.job.env_set.WHATEVER=canary-1", "'+hydra.job.env_set.WHATEVER=***'"),
        ("++hydra.job.env_set={A: canary-1}", "'++hydra.job.env_set=***'"),
        ("logger.api_key=canary-1", "'logger.api_key=***'"),
        ("study=canary-2", "'study=***'"),
        ("model.n_heads=4", "model.n_heads=4"),
        ("task.eval_tokens=128", "task.eval_tokens=128"),
    ],
)
def test_secrets_are_hidden_and_the_rest_is_kept(monkeypatch, argument, written):
    monkeypatch.setenv("SOME_TOKEN", "canary-2")
    monkeypatch.setenv("SHORT_KEY", "4")
    assert command_line(["headcount", "train", argument]) == f"headcount train {written}"
