"""Hydra's two extension points that Headcount fills: the sweeper that conducts a study, and the
launcher that runs jobs in worker processes. Hydra imports this file at every start, so what is heavy
is imported where it is used."""

import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf


class HeadcountSweeper(Sweeper):
    """Turns a multirun into a study: plan, cost wave, training wave, report.

    params: axes of the grid, as `key: "1,2,4"`. grids: a list of such grids; their points are joined,
    each over `params`. An override on the command line replaces the axis of its key in all of them.
    """

    def __init__(self, params: DictConfig, grids: Any, waves: Any) -> None:
        self.params: dict[str, str] = OmegaConf.to_container(params, resolve=True)  # type: ignore[assignment]
        self.grids: list[dict[str, str]] = OmegaConf.to_container(grids, resolve=True)  # type: ignore[assignment]
        self.waves = list(waves)

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        from hydra.core.plugins import Plugins

        self.config = config
        self.hydra_context = hydra_context
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        from headcount.hydra_app import compose_point
        from headcount.study.conduct import conduct
        from headcount.study.plan import Point, make_plan

        config, context, launcher = self.config, self.hydra_context, self.launcher
        assert config is not None  # all three are there from `setup` on
        assert context is not None
        assert launcher is not None
        plan = make_plan(
            self.requests(arguments),
            lambda point: compose_point(context.config_loader, config, point),
        )

        def launch(points: Sequence[Point]) -> None:
            launcher.launch([list(p.overrides) for p in points], initial_job_idx=0)

        sys.exit(conduct(plan, launch, self.waves))

    def requests(self, arguments: list[str]) -> Iterator[tuple[str, ...]]:
        """Every point asked for, as the overrides that ask for it."""
        given = _axes(arguments)
        for grid in self.grids or [{}]:
            lines = [f"{key}={value}" for key, value in {**self.params, **grid}.items()]
            axes = {**_axes(lines), **given}
            yield from itertools.product(*axes.values())


def _axes(lines: Sequence[str]) -> dict[str, list[str]]:
    """For each key the overrides that its values stand for: one where it is not swept.

    Of a key given twice the last value holds, as everywhere in Hydra; but an axis is never lost so.
    """
    axes: dict[str, list[str]] = {}
    for override in OverridesParser.create().parse_overrides(list(lines)):
        key, values = override.get_key_element(), _values(override)
        if key in axes and max(len(values), len(axes[key])) > 1:
            from headcount.errors import RequestError

            raise RequestError(f"{key}: given twice; give one list, such as {key}=1,2")
        axes[key] = values
    return axes


def _values(override: Override) -> list[str]:
    key = override.get_key_element()
    if override.is_sweep_override():
        return [f"{key}={value}" for value in override.sweep_string_iterator()]
    if override.is_delete() and override.value() is None:
        return [key]
    return [f"{key}={override.get_value_element_as_str()}"]


class ProcessesLauncher(Launcher):
    """Runs jobs in worker processes side by side; a worker that dies takes one job with it."""

    def __init__(self, n_workers: int | None) -> None:
        self.n_workers = n_workers

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.hydra_context = hydra_context
        self.task_function = task_function
        self.config = config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        from headcount.study.workers import run_jobs

        load = self.hydra_context.config_loader.load_sweep_config
        configs = [load(self.config, list(overrides)) for overrides in job_overrides]
        for index, config in enumerate(configs):
            with_number(config, initial_job_idx + index)
        return run_jobs(self.task_function, configs, job_overrides, self.n_workers)


def with_number(config: DictConfig, number: int) -> None:
    OmegaConf.set_struct(config, False)
    config.hydra.job.num = number
    config.hydra.job.id = str(number)
    OmegaConf.set_struct(config, True)
