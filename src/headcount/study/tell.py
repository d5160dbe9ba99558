"""What a command says of a study, on stdout."""

from collections.abc import Mapping, Sequence

from rich.table import Table

from headcount.measure.summary import cost_rows, headline, remarks
from headcount.study.plan import Plan, Point
from headcount.study.records import Cost, Record
from headcount.study.watch import console

LISTED = 20
"""Entries of a list that are shown; plan.json holds all."""


def say(line: str) -> None:
    """One line, whole: what it names can be copied from it."""
    console().print(line, soft_wrap=True, highlight=False, markup=False)


def tell_costs(costs: Sequence[Cost]) -> None:
    """What each layout costs at the headline context and batch, and what to mind."""
    if not costs:
        return
    rows = cost_rows(costs)
    context, batch_size = headline(costs[0])
    title = f"context {context:,}, batch {batch_size}, {costs[0].dtype}, {costs[0].device}"
    table = Table("", *(row["layout"] for row in rows), box=None, title=title)
    for key in list(rows[0])[1:]:
        table.add_row(key, *(row[key] for row in rows))
    console().print(table)
    for remark in remarks(costs):
        say(remark)


def tell_left_out(plan: Plan) -> None:
    """The points that become no run, and why."""
    same = [(overrides, f"same as {plan.swept(first)}") for overrides, first in plan.duplicates]
    for name, dropped in (("skipped", plan.skipped), ("duplicate", same)):
        for overrides, reason in dropped[:LISTED]:
            say(f"  {name}: {plan.swept(overrides)}: {reason}")
        if len(dropped) > LISTED:
            say(f"  {name}: {len(dropped) - LISTED:,} more, in plan.json")


def tell_lines(lines: Sequence[str]) -> None:
    """Some lines, in short where they are many."""
    for line in lines[:LISTED]:
        say(f"  {line}")
    if len(lines) > LISTED:
        say(f"  {len(lines) - LISTED:,} more")


def tell_runs(plan: Plan, points: Sequence[Point], records: Mapping[str, Record | None]) -> None:
    """Points that become runs, in the order in which they start, with what sets them apart."""
    table = Table("run", "layout", "seed", "steps", "parameters", "now", "swept", box=None)
    for point in points[:LISTED]:
        record, config = records.get(point.run_id), point.config
        table.add_row(
            point.run_id,
            config.layout.label,
            str(config.seed),
            f"{config.trainer.max_steps:,}",
            f"{config.shape.n_params:,}",
            record.status if record else "to run",
            plan.swept(point.overrides),
        )
    console().print(table, soft_wrap=True)
    if len(points) > LISTED:
        say(f"  {len(points) - LISTED:,} more runs, in plan.json")
