"""Progress of long work: a bar on a terminal, plain lines elsewhere, nothing under CI."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from headcount.study.plan import Point
from headcount.study.records import Record
from headcount.study.store import Study

LINE_SECONDS = 10.0
"""Without a terminal, a line at most this often."""

POLL_SECONDS = 0.5


def console() -> Console:
    """Where results go: stdout, 100 columns where no terminal says otherwise."""
    return Console(width=None if sys.stdout.isatty() else 100)


class Watch:
    """Shows one piece of long work."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.bar: Progress | None = None
        self._quiet = bool(os.environ.get("CI"))
        self._said_at = time.monotonic()

    def __enter__(self) -> "Watch":
        errors = Console(stderr=True)
        if errors.is_terminal and not self._quiet:
            self.bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=errors,
            )
            self.bar.start()
            self._task = self.bar.add_task(self.title, total=None)
        return self

    def update(self, what: str, done: int, total: int) -> None:
        """Say that `done` of `total` parts are done, and what is at work."""
        if self.bar is not None:
            text = f"{self.title} · {what}" if what else self.title
            self.bar.update(self._task, description=text, completed=done, total=total)
        elif not self._quiet and time.monotonic() - self._said_at > LINE_SECONDS:
            self._said_at = time.monotonic()
            print(f"{self.title}: {done:,}/{total:,} {what}", file=sys.stderr, flush=True)

    def tell(self, text: str) -> None:
        """Say something that must not wait, above the bar."""
        if self.bar is not None:
            self.bar.console.print(text, soft_wrap=True, highlight=False, markup=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.bar is not None:
            self.bar.stop()


@contextmanager
def watch_runs(
    study: Study, points: Sequence[Point], on_failure: Callable[[], None]
) -> Iterator[None]:
    """While runs go on anywhere, show the steps done, as their records tell them; tell each failure
    as it happens, with its traceback, and call `on_failure`."""
    stop = threading.Event()
    look = _Look(study, points, on_failure)

    def poll(watch: Watch) -> None:
        took = 0.0
        # Thousands of records on a slow file system must not keep it busy.
        while not stop.wait(max(POLL_SECONDS, 20 * took)):
            started = time.monotonic()
            look(watch)
            took = time.monotonic() - started

    with Watch("training steps") as watch:
        thread = threading.Thread(target=poll, args=(watch,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            look(watch)


class _Look:
    """Reads the records of runs that have not ended, and tells what is new."""

    def __init__(
        self, study: Study, points: Sequence[Point], on_failure: Callable[[], None]
    ) -> None:
        self.study = study
        self.open = {p.run_id: p for p in points}
        self.on_failure = on_failure
        self.runs = len(points)
        self.total = sum(p.config.trainer.max_steps for p in points)
        self.steps: dict[str, int] = {}
        # Failures of earlier commands are tried again, and are no news.
        self.told = {(r.run_id, r.training.finished) for r in self._records() if _went_wrong(r)}

    def __call__(self, watch: Watch) -> None:
        for record in self._records():
            self.steps[record.run_id] = record.training.steps
            if record.status == "completed":
                del self.open[record.run_id]
            elif _went_wrong(record) and (record.run_id, record.training.finished) not in self.told:
                self.told.add((record.run_id, record.training.finished))
                watch.tell(_failure(record))
                self.on_failure()
        ended = self.runs - len(self.open)
        watch.update(f"{ended}/{self.runs} runs", sum(self.steps.values()), self.total)

    def _records(self) -> list[Record]:
        records = (self.study.record(run_id) for run_id in self.open)
        return [record for record in records if record is not None]


def _went_wrong(record: Record) -> bool:
    return record.status in ("failed", "diverged")


def _failure(record: Record) -> str:
    """What went wrong, for the terminal: a line, and the traceback of what should not happen."""
    error = record.error
    line = (
        f"{record.status}: {record.layout.label} seed {record.config['seed']} ({record.run_id}): "
        f"{error.message if error else ''}"
    )
    return f"{line}\n{error.traceback}" if error and record.status == "failed" else line
