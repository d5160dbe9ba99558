"""Running as a job of `wandb agent`, which chooses the run's id, project and parameters.

The agent takes an exit status above 0 for a failure and gives up after a few in a row. A point that
cannot exist and a run that the sweep itself stopped are no failures: both end with 0 there.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from headcount.errors import RequestError
from headcount.study.records import Record
from headcount.tracking import connection, keys

INTERRUPTED = 130


def is_running() -> bool:
    return "WANDB_SWEEP_ID" in os.environ


def refuse_multirun(arguments: Sequence[str]) -> None:
    """One run of the agent is one run: several under its id would overwrite one another."""
    if is_running() and {"-m", "--multirun"} & set(arguments):
        raise RequestError(
            "-m under `wandb agent`: the agent names one run; put the axes into the sweep file"
        )


def record_invalid(reason: str) -> None:
    """Say in the agent's run that its point cannot exist, so that the search passes it by."""
    import wandb

    try:
        connection.require_key()
        run = wandb.init(mode="online", settings=connection.settings(live=False))
        run.summary.update({keys.STATUS: "invalid", keys.ERROR: reason})
        run.finish(exit_code=0)
    except Exception as error:
        connection.tell(f"the invalid point was not recorded ({connection.first_line(error)})")


def record_completed(record: Record, folder: Path) -> None:
    """Fill the agent's run from a run that had been completed before, and so did not run again."""
    from headcount.tracking.wandb_run import WandbRun

    logger = record.config["logger"]
    try:
        run = WandbRun(record, folder, "online", logger["project"], logger["entity"], live=False)
    except Exception as error:
        connection.tell(f"the earlier result was not recorded ({connection.first_line(error)})")
    else:
        run.close(record)


def exit_status(status: int) -> int:
    """What to tell the agent instead of a run's own exit status."""
    return 0 if status == INTERRUPTED else status
