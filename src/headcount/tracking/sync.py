"""`headcount sync`: bring a study's runs to a W&B server, each once, from their own plain files.

It needs nothing that W&B wrote: runs logged offline, with another logger or with none go up alike.
Interrupted anywhere and repeated, it sends what is missing.
"""

from dataclasses import dataclass, field
from pathlib import Path

from headcount.errors import HeadcountError
from headcount.study.records import Record
from headcount.study.store import Study
from headcount.tracking import connection
from headcount.tracking.upload_note import UploadNote


@dataclass
class Outcome:
    """The ids of a study's runs, by what became of them."""

    uploaded: list[str] = field(default_factory=list)
    already_there: list[str] = field(default_factory=list)
    at_work: list[str] = field(default_factory=list)
    """Runs that a live process is working on; they can be uploaded when it is done."""
    failed: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [f"{len(self.uploaded)} uploaded", f"{len(self.already_there)} already there"]
        parts += [f"{len(self.at_work)} still running"] * bool(self.at_work)
        parts += [f"{len(self.failed)} failed"] * bool(self.failed)
        return ", ".join(parts)


def sync(study: Study, project: str | None, entity: str | None) -> Outcome:
    """Upload every run of a study that is not there yet; None: the project it was configured for.

    Raises HeadcountError, in one line, where the server cannot be reached at all.
    """
    outcome = Outcome()
    damaged: dict[Path, str] = {}
    for record in study.records(damaged):
        logger = record.config["logger"]
        note = UploadNote.of(
            study.run_folder(record.run_id),
            project or logger["project"],
            entity or logger["entity"],
        )
        if note.holds(record):
            outcome.already_there.append(record.run_id)
            continue
        with study.claim(record.run_id) as ours:
            if not ours:
                outcome.at_work.append(record.run_id)
                continue
            trouble = _upload(record, note)
        if trouble:
            outcome.failed[record.run_id] = trouble
        else:
            outcome.uploaded.append(record.run_id)
    for path, reason in damaged.items():
        outcome.failed[path.parent.name] = reason
        connection.tell(reason)
    return outcome


def _upload(record: Record, note: UploadNote) -> str | None:
    """Send one run; what went wrong, if something did."""
    from headcount.tracking.wandb_run import WandbRun

    try:
        run = WandbRun(record, note.folder, "online", note.project, note.entity, live=False)
    except Exception as error:
        reason = connection.first_line(error)
        raise HeadcountError(f"W&B: {note.server} takes no runs ({reason})") from error
    run.close(record)
    return run.trouble
