"""Progress of long work: a bar on a terminal, plain lines elsewhere, nothing under CI."""

import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.bar is not None:
            self.bar.stop()


@contextmanager
def watch_runs(study: Study, points: Sequence[Point]) -> Iterator[None]:
    """While runs go on anywhere, show the steps done, as their records tell them."""
    stop = threading.Event()
    total = sum(p.config.trainer.max_steps for p in points)

    def poll(watch: Watch) -> None:
        steps = {p.run_id: 0 for p in points}
        told: set[str] = set()
        while not stop.wait(POLL_SECONDS):
            ended = 0
            for point in points:
                record = study.record(point.run_id)
                if record is None:
                    continue
                steps[point.run_id] = record.training.steps
                ended += record.status != "running"
                if record.status in ("failed", "diverged") and point.run_id not in told:
                    told.add(point.run_id)
                    reason = record.error.message if record.error else ""
                    message = (
                        f"{record.status}: {point.config.layout.label} seed {point.config.seed}"
                    )
                    print(f"{message}: {reason}", file=sys.stderr, flush=True)
            watch.update(f"{ended}/{len(points)} runs", sum(steps.values()), total)

    with Watch("training steps") as watch:
        thread = threading.Thread(target=poll, args=(watch,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
