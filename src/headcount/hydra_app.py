"""Where Hydra and Headcount meet: composing `conf/`, running the main job, and telling errors in one
line."""

import os
import re
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from headcount.config import Config, Orders, parse, parse_orders, unknown_key
from headcount.errors import CombinationError, HeadcountError, RequestError, did_you_mean
from headcount.study.compose import run_part
from headcount.tracking import agent

if TYPE_CHECKING:
    from headcount.study.plan import Point

CONF = Path(__file__).parent / "conf"

VERSION_BASE = "1.3"


def run(task: Callable[[DictConfig], Any], arguments: Sequence[str], program: str) -> None:
    """Run a Hydra job with these command-line arguments; errors reach the caller as exceptions."""
    for argument in arguments:
        if argument.startswith("="):  # of which Hydra's parser makes an exception of its own
            raise RequestError(f"{argument}: names no key; valid: key=value")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # else Hydra prints errors itself and ends with status 1
    sys.argv = [program, *arguments]
    hydra.main(version_base=VERSION_BASE, config_path=str(CONF), config_name="config")(task)()


def train(cfg: DictConfig) -> None:
    """One run alone: a study of one. Under multirun the sweeper conducts, and no job comes here."""
    _conduct_alone(cfg, ["cost", "training"])


def measure(cfg: DictConfig) -> None:
    """The cost of one configuration; under multirun the sweeper does it for all at once."""
    _conduct_alone(cfg, ["cost"])


def _conduct_alone(cfg: DictConfig, waves: Sequence[str]) -> None:
    """Conduct a study of one point in this process; ends with its exit status."""
    try:
        from headcount.study.conduct import conduct
        from headcount.study.plan import make_plan

        config, orders = parse(run_part(cfg, resolve=True)), orders_of(cfg)
        plan = make_plan([HydraConfig.get().overrides.task], lambda point: config, waves)
        earlier = plan.study.record(plan.points[0].run_id)
        status = conduct(plan, _launch_here, waves, orders)
        if agent.is_running():
            if earlier and earlier.status == "completed":
                agent.record_completed(earlier, plan.study.run_folder(earlier.run_id))
            status = agent.exit_status(status)
    except HeadcountError as error:
        if agent.is_running() and isinstance(error, CombinationError):
            agent.record_invalid(str(error))
            tell(error)
            raise SystemExit(0) from None
        # Hydra would print the job's overrides before an exception, but lets SystemExit through.
        raise SystemExit(tell(error)) from None
    sys.exit(status)


def _launch_here(points: Sequence["Point"], stop: threading.Event) -> dict[str, str]:
    from headcount.study.run import run_in_process  # brings torch

    return run_in_process(points, stop)


def compose(overrides: Sequence[str]) -> Config:
    """The configuration of `conf/` with these overrides."""
    with hydra.initialize_config_dir(version_base=VERSION_BASE, config_dir=str(CONF)):
        cfg = hydra.compose("config", overrides=list(overrides))
        return parse(run_part(cfg, resolve=True))


def orders_of(cfg: DictConfig) -> Orders:
    """How the study is to be carried out, as a composed configuration says it."""
    own = OmegaConf.masked_copy(cfg, [key for key in Orders.model_fields if key in cfg])
    return parse_orders(OmegaConf.to_container(own, resolve=True))  # type: ignore[arg-type]


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
