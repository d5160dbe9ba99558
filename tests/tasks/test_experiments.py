"""Every shipped experiment: composed whole, as the sweeper would, and the heart of `why_heads` run."""

import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import OmegaConf

from headcount.hydra_app import CONF, VERSION_BASE
from headcount.study import grid
from headcount.study.compose import Composer
from headcount.study.plan import make_plan
from headcount.study.store import Study

EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))

POINTS = {
    "context_by_heads": 24,
    "context_by_heads_full": 75,
    "endpoint_selection": 12,
    "head_count": 27,
    "kv_heads": 24,
    "kv_heads_full": 50,
    "low_rank": 30,
    "low_rank_full": 90,
    "vaswani_a": 18,
    "vaswani_a_full": 25,
    "why_heads": 39,
    "why_heads_full": 135,
    "width_by_heads": 45,
    "width_by_heads_full": 120,
}
"""Runs of each, layouts that cannot exist and duplicates left out."""


def plan_of(name):
    """The plan that `headcount train -m experiment=NAME` makes, by the sweeper's own composer."""
    with hydra.initialize_config_dir(version_base=VERSION_BASE, config_dir=str(CONF)):
        loader = GlobalHydra.instance().config_loader()
        request = [f"experiment={name}"]
        master = loader.load_configuration("config", request, RunMode.MULTIRUN)
        sweeper = OmegaConf.to_container(master.hydra.sweeper)
        points = grid.points(request, sweeper["params"], sweeper["grids"], loader)
        return make_plan(points, Composer(loader, master))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_composes_and_says_what_to_expect(name):
    plan = plan_of(name)
    assert {p.config.study for p in plan.points} == {name}
    assert len(plan.points) == POINTS[name]
    assert not plan.duplicates
    header = (CONF / "experiment" / f"{name}.yaml").read_text()
    if name not in ("head_count", "endpoint_selection"):  # told in their first lines
        assert "# Expected. " in header
    assert f"headcount train -m experiment={name}" in header


def test_every_experiment_has_a_small_and_a_full_budget():
    for name in EXPERIMENTS:
        assert (
            name in ("head_count", "endpoint_selection")
            or name.endswith("_full")
            or (f"{name}_full" in EXPERIMENTS)
        )


@pytest.mark.slow
def test_why_heads_shows_heads_that_pay_and_heads_that_cost(tmp_path: Path):
    """With 3 seeds: retrieval's error falls by more than 5 times between D − 2 heads and D and is flat
    beyond; one head halves the error of the nearest point; endpoint selection takes two heads."""
    command = [sys.executable, "-m", "headcount.cli", "train", "-m", "experiment=why_heads"]
    subprocess.run([*command, "logger=none", f"paths.results={tmp_path}"], check=True)
    loss, accuracy = defaultdict(list), defaultdict(list)
    for record in Study(tmp_path / "why_heads").records():
        task = record.config["task"]
        key = task["name"], task.get("n_terms"), record.layout.n_heads
        loss[key].append(record.quality.test_loss)
        accuracy[key].append(record.quality.test_accuracy)
    assert {len(values) for values in loss.values()} == {3}
    mean = {key: statistics.mean(values) for key, values in loss.items()}
    for d in (3, 4):
        assert mean["retrieval", d, d - 2] > 5 * mean["retrieval", d, d]
        fall = mean["retrieval", d, d - 2] - mean["retrieval", d, d]
        assert abs(mean["retrieval", d, 2 * d] - mean["retrieval", d, d]) < 0.1 * fall
    for h in (2, 4):
        assert mean["nearest_point", None, h] > 2 * mean["nearest_point", None, 1]
    for h in (2, 4, 8):
        assert min(accuracy["endpoint_selection", None, h]) >= 0.99
    assert max(accuracy["endpoint_selection", None, 1]) <= 0.80
    page = (tmp_path / "why_heads" / "report" / "index.html").read_text()
    assert all(name in page for name in ("endpoint_selection", "retrieval", "nearest_point"))
