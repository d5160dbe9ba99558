"""Search where a grid is too large: Optuna proposes points, the study runs them, records answer.

The trials lie in the study's folder (`search.journal`), so the same command goes on after a kill and
ends when `n_trials` have ended in all. A trial's values are read off its run's record; a point that
cannot exist, a diverged and a failed run are failed trials that say which of these they are, and the
search goes on.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep

from headcount.config import Config, Orders
from headcount.errors import CombinationError, RequestError
from headcount.study import grid
from headcount.study.conduct import finish, measured, terminated_like_interrupted
from headcount.study.estimate import estimate
from headcount.study.identity import run_id
from headcount.study.plan import Plan, Point
from headcount.study.rounds import EXIT_INTERRUPTED, EXIT_OK, EXIT_RUN_FAILED, Launch, Training
from headcount.study.store import Study
from headcount.study.tell import say

try:
    import optuna
    from optuna.storages.journal import JournalFileBackend
except ModuleNotFoundError:
    raise RequestError(
        "hydra/sweeper=optuna: Optuna is not installed; pip install 'headcount[search]'"
    ) from None

RUNNING, COMPLETE, FAIL = (
    optuna.trial.TrialState.RUNNING,
    optuna.trial.TrialState.COMPLETE,
    optuna.trial.TrialState.FAIL,
)


@dataclass(frozen=True)
class Settings:
    """objectives: headline keys of a record, each `minimize` or `maximize`. batch_size: trials that
    run together, each proposed without knowing the others."""

    objectives: Mapping[str, Literal["minimize", "maximize"]]
    n_trials: int
    batch_size: int
    seed: int


@dataclass(frozen=True)
class Space:
    """What is searched: a distribution a key; `fixed` are the overrides that every point has."""

    distributions: dict[str, Any]
    fixed: tuple[str, ...]

    @classmethod
    def of(cls, arguments: Sequence[str], params: Mapping[str, Any], loader: Any) -> "Space":
        """Read off overrides: lists, ranges and intervals are searched, single values are fixed."""
        parser = OverridesParser.create(config_loader=loader)
        given = parser.parse_overrides(list(arguments))
        replaced = {o.get_key_element() for o in given}
        lines = [f"{key}={value}" for key, value in params.items() if key not in replaced]
        distributions: dict[str, Any] = {}
        fixed: list[str] = []
        for override in [*parser.parse_overrides(lines), *given]:
            key = override.get_key_element()
            if grid.is_order(key):
                continue
            if override.is_sweep_override():
                distributions[key] = _distribution(override)
            else:
                fixed += grid.values(override)
        if not distributions:
            raise RequestError(
                "hydra/sweeper=optuna: nothing to search; valid: a list, a range or an interval for a "
                "key, such as model.n_heads=1,2,4 or optim.lr=tag(log,interval(1e-4,1e-2))"
            )
        return cls(distributions, tuple(fixed))

    def overrides(self, params: Mapping[str, Any]) -> tuple[str, ...]:
        """A proposed point, as the overrides that ask for it."""
        return (*self.fixed, *(f"{key}={value}" for key, value in params.items()))


def _distribution(override: Override) -> Any:
    value = override.value()
    if isinstance(value, IntervalSweep):
        assert value.start is not None
        assert value.end is not None
        return optuna.distributions.FloatDistribution(
            value.start, value.end, log="log" in value.tags
        )
    if isinstance(value, RangeSweep) and isinstance(value.start, int):
        numbers = list(value.range())
        return optuna.distributions.IntDistribution(
            int(numbers[0]), int(numbers[-1]), step=int(value.step)
        )
    return optuna.distributions.CategoricalDistribution(list(override.sweep_string_iterator()))


class Search:
    """A search in one study's folder."""

    def __init__(
        self,
        space: Space,
        settings: Settings,
        compose: Callable[[Sequence[str]], Config],
        launch: Launch,
        orders: Orders,
    ) -> None:
        if orders.protocol.name != "shared_lr":
            raise RequestError(
                f"protocol={orders.protocol.name} with hydra/sweeper=optuna; valid: shared_lr, and "
                "optim.lr among what is searched"
            )
        self.space, self.settings, self.compose = space, settings, compose
        self.launch, self.orders = launch, orders
        self.study = Study.of(_any_config(space, compose))
        self.study.folder.mkdir(parents=True, exist_ok=True)
        self.plan = Plan()
        optuna.logging.set_verbosity(logging.WARNING)
        backend = JournalFileBackend(str(self.study.folder / "search.journal"))
        self.trials = optuna.create_study(
            study_name=self.study.name,
            storage=optuna.storages.JournalStorage(backend),
            directions=list(settings.objectives.values()),
            load_if_exists=True,
        )

    def run(self) -> int:
        """Search until `n_trials` have ended; return the exit status."""
        say(
            f"study {self.study.folder}: {len(self._ended())} of {self.settings.n_trials} trials ended; "
            f"searching {', '.join(self.space.distributions)} for {', '.join(self.settings.objectives)}"
        )
        if self.orders.plan_only:
            return EXIT_OK
        try:
            with terminated_like_interrupted():
                self._take_up()
                while left := self.settings.n_trials - len(self._ended()):
                    self._batch(min(left, self.settings.batch_size))
        except KeyboardInterrupt:
            say(f"interrupted; the same command goes on: {len(self._ended())} trials ended")
            return EXIT_INTERRUPTED
        finish(self.study)
        return self._conclude()

    def _ended(self) -> list[Any]:
        """Trials that count; one that a kill cut short is proposed again, and does not."""
        return [
            t
            for t in self.trials.get_trials(deepcopy=False)
            if t.state in (COMPLETE, FAIL) and t.user_attrs.get("outcome") != "interrupted"
        ]

    def _take_up(self) -> None:
        """Trials that a killed command left running are proposed again, as they were."""
        for trial in self.trials.get_trials(deepcopy=False, states=(RUNNING,)):
            live = optuna.trial.Trial(self.trials, trial._trial_id)
            self._fail(live, "interrupted", "the command ended before the trial")
            self.trials.enqueue_trial(trial.params)

    def _batch(self, size: int) -> None:
        # Seeded anew by how far the search is: taken up again, it does not repeat its beginning.
        self.trials.sampler = optuna.samplers.TPESampler(
            seed=self.settings.seed + len(self.trials.get_trials(deepcopy=False)),
            constant_liar=size > 1,
        )
        asked: list[tuple[Any, Point]] = []
        for _ in range(size):
            trial = self.trials.ask(self.space.distributions)
            overrides = self.space.overrides(trial.params)
            try:
                config = self.compose(overrides)
            except CombinationError as error:
                self._fail(trial, "invalid", str(error))
                continue
            asked.append((trial, Point(overrides, config, run_id(config))))
        points = list({point.run_id: point for _, point in asked}.values())
        if not points:
            return
        known = {p.run_id for p in self.plan.points}
        self.plan.points += [p for p in points if p.run_id not in known]
        self.plan.save(estimate([p.config for p in points], []))
        training = Training(self.study, points, self.launch, self.orders)
        try:
            measured(self.study, points)
            training.run()
        except KeyboardInterrupt:
            training.mark_abandoned("interrupted")
            raise
        for trial, point in asked:
            self._tell(trial, point)

    def _tell(self, trial: Any, point: Point) -> None:
        record = self.study.record(point.run_id)
        trial.set_user_attr("run_id", point.run_id)
        if record is None or record.status != "completed":
            outcome = record.status if record else "not started"
            self._fail(trial, outcome, record.error.message if record and record.error else "")
            return
        headline = record.headline()
        absent = [key for key in self.settings.objectives if headline.get(key) is None]
        if absent:
            self._fail(trial, "incomplete", f"the record has no {', '.join(absent)}")
            return
        trial.set_user_attr("outcome", "completed")
        self.trials.tell(trial, [headline[key] for key in self.settings.objectives])

    def _fail(self, trial: Any, outcome: str, reason: str) -> None:
        trial.set_user_attr("outcome", outcome)
        trial.set_user_attr("reason", reason)
        self.trials.tell(trial, state=FAIL)

    def _conclude(self) -> int:
        ended = self._ended()
        for trial in ended:
            if trial.state == FAIL:
                at = " ".join(f"{k}={v}" for k, v in trial.params.items())
                attrs = trial.user_attrs
                say(f"{attrs.get('outcome')}: {at}: {attrs.get('reason')}")
        say("on the front:" if self.trials.best_trials else "no trial completed")
        for trial in self.trials.best_trials:
            at = " ".join(f"{k}={v}" for k, v in trial.params.items())
            values = zip(self.settings.objectives, trial.values, strict=True)
            figures = ", ".join(f"{key} {value:.6g}" for key, value in values)
            say(f"  {trial.user_attrs['run_id']} {at}: {figures}")
        bad = [t for t in ended if t.user_attrs.get("outcome") not in ("completed", "invalid")]
        return EXIT_RUN_FAILED if bad else EXIT_OK


def _any_config(space: Space, compose: Callable[[Sequence[str]], Config]) -> Config:
    """A configuration of the space, which tells the study; its searched keys as they are without."""
    return compose(space.fixed)
