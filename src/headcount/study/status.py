"""How far a study is, told from its plan and its records."""

from rich.table import Table

from headcount.study.store import Study
from headcount.study.watch import console


def show(study: Study) -> None:
    """Print a table of the runs that are not complete, and a line that counts all."""
    planned = {p["run_id"]: p for p in study.planned()}
    records = {r.run_id: r for r in study.records()}
    counts: dict[str, int] = {}
    table = Table("run", "layout", "seed", "status", "steps", "reason", box=None)
    for run_id in [*planned, *(r for r in records if r not in planned)]:
        record = records.get(run_id)
        status = record.status if record else "not started"
        counts[status] = counts.get(status, 0) + 1
        if status == "completed":
            continue
        layout = record.layout.label if record else planned[run_id]["layout"]
        seed = record.config["seed"] if record else planned[run_id]["seed"]
        steps = f"{record.training.steps:,}" if record else "0"
        reason = record.error.message if record and record.error else ""
        table.add_row(run_id, layout, str(seed), status, steps, reason)
    out = console()
    if table.row_count:
        out.print(table)
    summary = ", ".join(f"{n} {status}" for status, n in sorted(counts.items())) or "no runs"
    costs = sum(1 for _ in study.cost_records())
    out.print(f"study {study.folder}: {summary}; {costs} cost records", soft_wrap=True)
