"""Where Hydra and Headcount meet: composing `conf/`, running the main job, and telling errors in one
line."""

import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from headcount.config import Config, parse, unknown_key
from headcount.errors import LayoutError, RequestError, did_you_mean
from headcount.tracking import agent

CONF = Path(__file__).parent / "conf"

VERSION_BASE = "1.3"


def run(task: Callable[[DictConfig], Any], arguments: Sequence[str], program: str) -> None:
    """Run a Hydra job with these command-line arguments; errors reach the caller as exceptions."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # else Hydra prints errors itself and ends with status 1
    sys.argv = [program, *arguments]
    hydra.main(version_base=VERSION_BASE, config_path=str(CONF), config_name="config")(task)()


def train(cfg: DictConfig) -> str | None:
    """The main job. One run alone is a study of one; under multirun this is one job of the sweep."""
    if HydraConfig.get().mode == RunMode.MULTIRUN:
        return _train_one(cfg)
    _conduct_alone(cfg, ["cost", "training"])
    return None


def measure(cfg: DictConfig) -> None:
    """The cost of one configuration; under multirun the sweeper does it for all at once."""
    _conduct_alone(cfg, ["cost"])


def _train_one(cfg: DictConfig) -> str:
    from headcount.study.run import execute

    record = execute(parse(_plain(cfg)))
    if record.status == "interrupted":
        raise KeyboardInterrupt
    return record.status


def _conduct_alone(cfg: DictConfig, waves: Sequence[str]) -> None:
    """Conduct a study of one point in this process; ends with its exit status."""
    try:
        from headcount.study.conduct import conduct
        from headcount.study.plan import Point, make_plan

        config = parse(_plain(cfg))
        plan = make_plan([HydraConfig.get().overrides.task], lambda point: config)

        def launch(points: Sequence[Point]) -> None:
            from headcount.study.run import execute

            for point in points:
                execute(point.config)

        earlier = plan.study.record(plan.points[0].run_id)
        status = conduct(plan, launch, waves)
        if agent.is_running():
            if earlier and earlier.status == "completed":
                agent.record_completed(earlier, plan.study.run_folder(earlier.run_id))
            status = agent.exit_status(status)
    except RequestError as error:
        if agent.is_running() and isinstance(error, LayoutError):
            agent.record_invalid(str(error))
            tell(error)
            raise SystemExit(0) from None
        # Hydra would print the job's overrides before an exception, but lets SystemExit through.
        raise SystemExit(tell(error)) from None
    sys.exit(status)


def compose(overrides: Sequence[str]) -> Config:
    """The configuration of `conf/` with these overrides."""
    with hydra.initialize_config_dir(version_base=VERSION_BASE, config_dir=str(CONF)):
        return parse(_plain(hydra.compose("config", overrides=list(overrides))))


def compose_point(loader: Any, base: DictConfig, overrides: Sequence[str]) -> Config:
    """The configuration of one point of a sweep."""
    cfg = loader.load_sweep_config(base, list(overrides))
    OmegaConf.set_struct(cfg, False)
    del cfg["hydra"]
    return parse(_plain(cfg))


def _plain(cfg: DictConfig) -> dict[str, Any]:
    container = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items() if key != "experiment"}


def tell(error: Exception) -> int:
    """Print an error in one line on stderr; return exit status 2."""
    print(f"headcount: error: {explain(error)}", file=sys.stderr)
    return 2


def explain(error: Exception) -> str:
    """One line for the user: the key, the value, and what would be valid."""
    text = str(error)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, choice = error.missing_cfg_file.rpartition("/")
        valid = ", ".join(sorted(error.options))
        return (
            f"{group}={choice}: no such choice{did_you_mean(choice, error.options)}; valid: {valid}"
        )
    unknown = re.search(r"Could not override '([^']+)'.*use \+\S+?=(.*?)$", text, re.S | re.M)
    if isinstance(error, ConfigCompositionException) and unknown:
        return unknown_key(unknown[1], unknown[2])
    if isinstance(error, HydraException | OmegaConfBaseException):
        return " ".join(text.split())
    return text
