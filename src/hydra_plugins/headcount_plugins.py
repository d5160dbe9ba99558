"""Hydra's two extension points that Headcount fills: sweepers that conduct a study, and launchers
that run it. Hydra imports this file at every start, so what is heavy is imported where it is used."""

import sys
import threading
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

if TYPE_CHECKING:
    from headcount.study.plan import Point


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
        self.config = config
        self.loader = hydra_context.config_loader
        self.launcher = study_launcher(hydra_context, task_function, config)
        self.run = self.launcher.run

    def sweep(self, arguments: list[str]) -> None:
        from headcount.hydra_app import orders_of
        from headcount.study import grid
        from headcount.study.compose import Composer
        from headcount.study.conduct import conduct
        from headcount.study.plan import make_plan

        assert self.config is not None  # from `setup` on
        orders = orders_of(self.config)
        points = grid.points(arguments, self.params, self.grids, self.loader)
        plan = make_plan(points, Composer(self.loader, self.config), self.waves)
        sys.exit(conduct(plan, self.run, self.waves, orders))


class OptunaSweeper(HeadcountSweeper):
    """Searches instead of sweeping: `params` and overrides span the space, Optuna proposes points."""

    def __init__(
        self, params: DictConfig, objectives: Any, n_trials: int, batch_size: int, seed: int
    ) -> None:
        super().__init__(params, OmegaConf.create([]), ["cost", "training"])
        self.settings = {
            "objectives": OmegaConf.to_container(objectives),
            "n_trials": n_trials,
            "batch_size": batch_size,
            "seed": seed,
        }

    def sweep(self, arguments: list[str]) -> None:
        from headcount.hydra_app import orders_of
        from headcount.study.compose import Composer
        from headcount.study.search import Search, Settings, Space

        assert self.config is not None  # from `setup` on
        space = Space.of(arguments, self.params, self.loader)
        compose = Composer(self.loader, self.config)
        settings = Settings(**self.settings)  # type: ignore[arg-type]
        sys.exit(Search(space, settings, compose, self.run, orders_of(self.config)).run())


class StudyLauncher(Launcher):
    """Runs points of a plan somewhere. They are resolved already, so nothing is composed again."""

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.config = config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        from headcount.errors import RequestError

        raise RequestError(
            "hydra/sweeper: headcount's launchers run studies; valid: headcount, optuna"
        )

    @abstractmethod
    def run(self, points: Sequence["Point"], stop: threading.Event) -> dict[str, str]:
        """Run points and return when each has ended; start none once `stop` is set. Returns, by run
        id, why one ended that could not write it into its record."""


def study_launcher(
    hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
) -> StudyLauncher:
    """The launcher that the configuration chose; RequestError if it is none of ours."""
    launcher = Plugins.instance().instantiate_launcher(
        hydra_context=hydra_context, task_function=task_function, config=config
    )
    from headcount.errors import RequestError

    if isinstance(launcher, ProcessesLauncher):
        n = launcher.n_workers
        if n is not None and (type(n) is not int or n < 1):
            raise RequestError(
                f"hydra.launcher.n_workers={n}: must be a whole number above 0, or null"
            )
    if isinstance(launcher, StudyLauncher):
        return launcher
    chosen = config.hydra.runtime.choices["hydra/launcher"]
    raise RequestError(
        f"hydra/launcher={chosen}: cannot run a study; valid: in_process, processes, slurm, ray"
    )


class InProcessLauncher(StudyLauncher):
    """Runs points one after another in this process."""

    def run(self, points: Sequence["Point"], stop: threading.Event) -> dict[str, str]:
        from headcount.study.run import run_in_process

        return run_in_process(points, stop)


class ProcessesLauncher(StudyLauncher):
    """Runs points in worker processes side by side; a worker that dies takes one run with it."""

    def __init__(self, n_workers: int | None) -> None:
        self.n_workers = n_workers

    def run(self, points: Sequence["Point"], stop: threading.Event) -> dict[str, str]:
        from headcount.study.workers import run_in_processes

        return run_in_processes(points, stop, self.n_workers)


class SlurmLauncher(StudyLauncher):
    """Runs points as the jobs of a SLURM array."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def run(self, points: Sequence["Point"], stop: threading.Event) -> dict[str, str]:
        from headcount.study.slurm import run_on_slurm

        return run_on_slurm(points, stop, self.options)


class RayLauncher(StudyLauncher):
    """Runs points as tasks of a Ray cluster."""

    def __init__(self, address: str | None) -> None:
        self.address = address

    def run(self, points: Sequence["Point"], stop: threading.Event) -> dict[str, str]:
        from headcount.study.ray import run_on_ray

        return run_on_ray(points, stop, self.address)
