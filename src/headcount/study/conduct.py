"""A study from plan to report: the cost wave, then the training wave, then what came out.

    plan ──► cost wave ──► training wave ──► records ──► report

The cost wave has the host to itself; only afterwards may the training wave run side by side.
No torch here: the processes that measure and train bring it.
"""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from headcount.analysis import report
from headcount.config import Orders, Tuned
from headcount.errors import HeadcountError
from headcount.measure.wave import cost_wave
from headcount.study.estimate import estimate
from headcount.study.plan import Plan, Point
from headcount.study.records import Cost, Record
from headcount.study.rounds import (
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_RUN_FAILED,
    Launch,
    Training,
    completed,
)
from headcount.study.store import Study
from headcount.study.tell import say, tell_costs, tell_left_out, tell_lines, tell_runs
from headcount.study.tuned import TunedPlan
from headcount.study.watch import Watch, console
from headcount.text.corpus import prepare_text


def conduct(plan: Plan, launch: Launch, waves: Sequence[str], orders: Orders) -> int:
    """Carry out a plan, the waves of it that are named; return the exit status."""
    if isinstance(orders.protocol, Tuned) and "training" in waves:
        plan = TunedPlan.of(plan, orders.protocol)
    try:
        with terminated_like_interrupted():
            return _conduct(plan, launch, waves, orders)
    except OSError as error:
        where = error.filename or plan.study.folder
        raise HeadcountError(
            f"{where}: {error.strerror or error}; everything written before is kept"
        ) from error


def _conduct(plan: Plan, launch: Launch, waves: Sequence[str], orders: Orders) -> int:
    chosen = plan.grow()
    mine = plan.shard(orders.shard)
    study, known = plan.study, plan.study.known()
    records = {p.run_id: study.record(p.run_id) for p in plan.points if p.run_id in known}
    missing = [p for p in mine if not completed(records.get(p.run_id))]
    if "training" in waves and not orders.plan_only:
        prepare_text([p.config for p in missing])
    _tell_plan(plan, mine, missing, records, waves, orders)
    tell_lines(chosen)
    if orders.plan_only or not mine:
        return EXIT_OK
    training = Training(study, mine, launch, orders)
    costs: list[Cost] = []
    try:
        if "cost" in waves:
            costs = measured(study, mine)
        if "training" in waves and missing:
            training.run()
            _grow(plan, training)
    except KeyboardInterrupt:
        training.mark_abandoned("interrupted")
        say(f"interrupted; the same command goes on: {training.counts()}")
        return EXIT_INTERRUPTED
    uncosted = EXIT_RUN_FAILED if "cost" in waves and not costs else EXIT_OK
    if "training" not in waves:
        tell_costs(costs)
        return uncosted
    finish(study)
    return training.conclude() or uncosted


def _grow(plan: Plan, training: Training) -> None:
    """Run what follows from the runs that have ended."""
    chosen = plan.grow()
    tell_lines(chosen)
    if not chosen:
        return
    training.points = plan.shard(training.orders.shard)
    records = [r for p in training.points if (r := training.study.record(p.run_id))]
    plan.save(estimate([p.config for p in training.points], [r for r in records if completed(r)]))
    training.run()


def finish(study: Study) -> None:
    """What came out: the table and the report."""
    console().print(report.summary_table(study))
    say(f"report: {report.build(study)}")


def measured(study: Study, points: Sequence[Point]) -> list[Cost]:
    """The cost of each layout, in the order asked for; none, said in one line, where measuring
    failed: quality does not hang on it."""
    try:
        with Watch("measuring costs") as watch:
            return list(cost_wave(study, [p.config for p in points], watch.update).values())
    except HeadcountError as error:
        say(f"no costs: {error}")
        return []


def _tell_plan(
    plan: Plan,
    mine: Sequence[Point],
    missing: Sequence[Point],
    records: dict[str, Record | None],
    waves: Sequence[str],
    orders: Orders,
) -> None:
    """The request in numbers, before anything runs; what was left out, and why; and plan.json."""
    line = f"study {plan.study.folder}: {len(plan.points)} runs planned"
    if plan.pending:
        line += f", {plan.pending} more once they have chosen learning rates"
    if orders.shard:
        line += f", {len(mine)} of them in shard {orders.shard}"
    if "training" in waves:
        steps = sum(p.config.trainer.max_steps for p in missing)
        line += f", {len(mine) - len(missing)} complete, {len(missing)} to run ({steps:,} steps)"
    say(line)
    tell_left_out(plan)
    if "training" not in waves:
        return
    done = [r for r in records.values() if r is not None and completed(r)]
    taking = estimate([p.config for p in missing], done)
    if missing:
        say(f"  to run: {taking.line()}")
    if orders.plan_only:
        tell_runs(plan, mine, records)
    plan.save(taking)


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Within the block SIGTERM, too, is a KeyboardInterrupt: schedulers end jobs with it."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
