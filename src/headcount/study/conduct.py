"""A study from plan to report: the cost wave, then the training wave, then what came out.

    plan ──► cost wave ──► training wave ──► records ──► report

The cost wave has the host to itself; only afterwards may the training wave run side by side.
No torch here: the processes that measure and train bring it.
"""

from collections.abc import Callable, Sequence

from rich.console import Console

from headcount.analysis import report
from headcount.measure.wave import cost_wave
from headcount.study.plan import Plan, Point
from headcount.study.records import Failure, Record
from headcount.study.watch import Watch, console, watch_runs
from headcount.text.corpus import prepare_text

EXIT_OK, EXIT_RUN_FAILED, EXIT_REQUEST_WRONG, EXIT_INTERRUPTED = 0, 1, 2, 130

Launch = Callable[[Sequence[Point]], None]
"""Runs points and returns when each has ended; what became of them stands in their records."""


def conduct(plan: Plan, launch: Launch, waves: Sequence[str]) -> int:
    """Carry out a plan, the waves of it that are named; return the exit status."""
    study, out = plan.study, console()
    missing = [p for p in plan.points if not _completed(study.record(p.run_id))]
    if "training" in waves:
        prepare_text([p.config for p in missing])
    _tell_plan(plan, missing, waves, out)
    plan.save()
    if "cost" in waves:
        with Watch("measuring costs") as watch:
            cost_wave(study, [p.config for p in plan.points], watch.update)
    if "training" in waves and missing:
        try:
            with watch_runs(study, missing):
                launch(missing)
        except KeyboardInterrupt:
            _mark_abandoned(plan, "interrupted")
            out.print(f"interrupted; the same command goes on: {_counts(plan)}", soft_wrap=True)
            return EXIT_INTERRUPTED
        _mark_abandoned(plan, "failed")
    out.print(report.summary_table(study))
    out.print(f"report: {report.build(study)}", soft_wrap=True)
    return _conclude(plan, out) if "training" in waves else EXIT_OK


def _completed(record: Record | None) -> bool:
    return record is not None and record.status == "completed"


def _tell_plan(plan: Plan, missing: list[Point], waves: Sequence[str], out: Console) -> None:
    """The request in numbers, before anything runs; what was left out, and why."""
    steps = sum(p.config.trainer.max_steps for p in missing)
    done = len(plan.points) - len(missing)
    line = f"study {plan.study.folder}: {len(plan.points)} runs planned"
    if "training" in waves:
        line += f", {done} complete, {len(missing)} to run ({steps:,} steps)"
    out.print(line, soft_wrap=True, highlight=False)
    for name, dropped in (("skipped", plan.skipped), ("duplicate", plan.duplicates)):
        for overrides, reason in dropped:
            out.print(
                f"  {name}: {' '.join(overrides)}: {reason}",
                soft_wrap=True,
                highlight=False,
                markup=False,
            )


def _mark_abandoned(plan: Plan, status: str) -> None:
    """A record still `running` whose process is gone was ended from outside: say so."""
    study = plan.study
    for point in plan.points:
        record = study.record(point.run_id)
        if record is None or record.status != "running":
            continue
        with study.claim(point.run_id) as ours:
            if ours:
                record.status = status  # type: ignore[assignment]
                message = "the run's process ended without a word (killed, or out of memory)"
                record.error = Failure(type="ProcessDied", message=message, traceback=message)
                study.write_record(record)


def _counts(plan: Plan) -> str:
    counts: dict[str, int] = {}
    for point in plan.points:
        record = plan.study.record(point.run_id)
        status = record.status if record else "not started"
        counts[status] = counts.get(status, 0) + 1
    return ", ".join(f"{n} {status}" for status, n in sorted(counts.items()))


def _conclude(plan: Plan, out: Console) -> int:
    """Name every run that did not complete; the exit status says whether there was one."""
    study = plan.study
    records = [study.record(p.run_id) for p in plan.points]
    for point, record in zip(plan.points, records, strict=True):
        if _completed(record):
            continue
        status = record.status if record else "not started"
        reason = record.error.message if record and record.error else "no record"
        out.print(
            f"{status}: {' '.join(point.overrides)} ({point.run_id}): {reason}",
            soft_wrap=True,
            highlight=False,
            markup=False,
        )
    if any(r is not None and r.status == "interrupted" for r in records):
        return EXIT_INTERRUPTED
    return EXIT_OK if all(map(_completed, records)) else EXIT_RUN_FAILED
