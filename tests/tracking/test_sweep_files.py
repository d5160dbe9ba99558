"""The shipped sweep files: valid by W&B's schema, composed by Hydra, on metrics that runs log."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml
from sweeps.config.cfg import schema_violations_from_proposed_config
from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args

from headcount.errors import LayoutError
from headcount.hydra_app import compose
from headcount.tracking import keys

FILES = sorted((Path(__file__).parents[2] / "sweeps").glob("*.yaml"))
FROM_SUMMARY = {"quality/val_loss", "quality/test_accuracy", keys.OBJECTIVE}


def load(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text())


def points(parameters: dict[str, Any]) -> list[dict[str, Any]]:
    """Every point of a grid, at its first seed; of a range its ends."""
    axes = [p.get("values") or [p["min"], p["max"]] for p in parameters.values()]
    axes = [a[:1] if key == "seed" else a for key, a in zip(parameters, axes, strict=True)]
    return [dict(zip(parameters, point, strict=True)) for point in itertools.product(*axes)]


def command(sweep: dict[str, Any], point: dict[str, Any]) -> list[str]:
    """The command that the agent runs, by the agent's own code."""
    words = create_sweep_command_args({"args": {k: {"value": v} for k, v in point.items()}})
    filled = words | {"env": ["/usr/bin/env"], "program": [sweep["program"]]}
    parts = [
        filled[item[2:-1]] if item.startswith("${") else [item]
        for item in create_sweep_command(sweep["command"])
    ]
    return list(itertools.chain.from_iterable(parts))


def test_every_method_is_shipped():
    methods = {load(path)["method"] for path in FILES}
    assert methods == {"grid", "random", "bayes"}
    assert "hyperband" in {load(p).get("early_terminate", {}).get("type") for p in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
class TestFile:
    def test_is_valid_by_the_schema(self, path):
        sweep = load(path)
        sweep.pop("run_cap", None)  # newer than the schema
        assert schema_violations_from_proposed_config(sweep) == []

    def test_has_the_two_commands_on_top(self, path):
        comments = [line for line in path.read_text().splitlines() if line.startswith("#")]
        assert f"#   wandb sweep sweeps/{path.name}" in comments
        assert any(line.startswith("#   wandb agent ") for line in comments)

    def test_every_point_composes_to_what_it_says(self, path):
        sweep = load(path)
        fixed = [c for c in sweep["command"] if "=" in c]
        n_valid = 0
        for point in points(sweep["parameters"]):
            env, program, verb, *overrides = command(sweep, point)
            assert (env, program, verb) == ("/usr/bin/env", "headcount", "train")
            assert overrides[: len(fixed)] == fixed
            try:
                config = compose(overrides)
            except LayoutError:
                continue
            n_valid += 1
            resolved = config.model_dump()
            for key, value in point.items():
                found: Any = resolved
                for part in key.split("."):
                    found = found[part]
                assert found == value, key
                assert type(found) is type(value), key
        assert n_valid >= len(points(sweep["parameters"])) * 0.75

    def test_its_metric_is_one_that_runs_log(self, path):
        sweep = load(path)
        name = sweep["metric"]["name"]
        assert name in {*keys.CURVES, *FROM_SUMMARY}
        if "early_terminate" in sweep:
            assert name in keys.CURVES  # hyperband looks at the history


def test_the_grid_is_the_shipped_study():
    from headcount.study.identity import run_id

    sweep = load(next(p for p in FILES if p.stem == "head_count"))
    ids = {run_id(compose(command(sweep, p)[3:])) for p in points(sweep["parameters"])}
    study = {
        run_id(compose(["experiment=head_count", f"model.n_heads={h}", "seed=0"]))
        for h in (1, 2, 4, 8, 16)
    }
    assert ids == study
    assert sweep["parameters"]["seed"]["values"] == [0, 1, 2]
