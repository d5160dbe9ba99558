"""The training wave: launch what is missing, again where it may be tried again, until all is settled.

Several commands may conduct the same study at once, on one host or on many: each run goes to the one
that claims it, and each command ends when all of its runs have.
"""

import threading
from collections import Counter
from collections.abc import Callable, Sequence

from headcount.config import Orders
from headcount.study.plan import Point
from headcount.study.records import Failure, Record, Status
from headcount.study.store import Study
from headcount.study.tell import say
from headcount.study.watch import watch_runs

EXIT_OK, EXIT_RUN_FAILED, EXIT_INTERRUPTED = 0, 1, 130

Launch = Callable[[Sequence[Point], threading.Event], dict[str, str]]
"""Runs points and returns when each has ended, starting none once the event is set. What became of
them stands in their records; returned is, by run id, why one ended that could not write its own."""

POLL_SECONDS = 1.0


class Training:
    """The training wave of one command."""

    def __init__(
        self, study: Study, points: Sequence[Point], launch: Launch, orders: Orders
    ) -> None:
        self.study = study
        self.points = points
        self.launch = launch
        self.orders = orders
        self.stop = threading.Event()
        self.attempts: Counter[str] = Counter()
        self.reasons: dict[str, str] = {}

    def run(self) -> None:
        with watch_runs(self.study, self.points, self._on_failure):
            while not self.stop.is_set():
                due, elsewhere = self._open_points()
                if due:
                    self._round(due)
                elif elsewhere:
                    self.stop.wait(POLL_SECONDS)
                else:
                    return

    def _on_failure(self) -> None:
        if self.orders.fail_fast:
            self.stop.set()

    def _open_points(self) -> tuple[list[Point], list[Point]]:
        """Points to launch now, and points that other live processes are at work on."""
        due: list[Point] = []
        elsewhere: list[Point] = []
        for point in self.points:
            record = self.study.record(point.run_id)
            status = record.status if record else None
            if status == "completed":
                continue
            tries = self.attempts[point.run_id]
            # A diverged run diverges again: only a failure may have been bad luck.
            if tries > (0 if status == "diverged" else self.orders.retries):
                continue
            held = self.study.holder(point.run_id) is not None
            (elsewhere if held else due).append(point)
        return due, elsewhere

    def _round(self, due: Sequence[Point]) -> None:
        self.reasons.update(self.launch(due, self.stop))
        self.mark_abandoned("failed")
        for point in due:
            if self.study.holder(point.run_id) is None:
                self.attempts[point.run_id] += 1

    def mark_abandoned(self, status: Status) -> None:
        """A record still `running` whose process is gone was ended from outside: say so."""
        for point in self.points:
            record = self.study.record(point.run_id)
            if record is None or record.status != "running":
                continue
            with self.study.claim(point.run_id) as claim:
                record = self.study.record(point.run_id)
                if claim is not None and record is not None and record.status == "running":
                    message = self.reasons.get(point.run_id) or (
                        "the run's process ended without a word (killed, or out of memory)"
                    )
                    record.status = status
                    record.error = Failure(type="ProcessDied", message=message, traceback=message)
                    self.study.write_record(record)

    def counts(self) -> str:
        """The runs by status, in words."""
        records = (self.study.record(p.run_id) for p in self.points)
        counts = Counter(r.status if r else "not started" for r in records)
        return ", ".join(f"{n} {status}" for status, n in sorted(counts.items()))

    def conclude(self) -> int:
        """Name every run that did not complete; the exit status says whether there was one."""
        incomplete = [
            (point, record)
            for point in self.points
            if not completed(record := self.study.record(point.run_id))
        ]
        for point, record in incomplete:
            say(f"{_what_happened(point, record, self.reasons)}")
        if any(r is not None and r.status == "interrupted" for _, r in incomplete):
            return EXIT_INTERRUPTED
        return EXIT_RUN_FAILED if incomplete else EXIT_OK


def completed(record: Record | None) -> bool:
    return record is not None and record.status == "completed"


def _what_happened(point: Point, record: Record | None, reasons: dict[str, str]) -> str:
    status = record.status if record else "not started"
    reason = record.error.message if record and record.error else reasons.get(point.run_id, "")
    return f"{status}: {' '.join(point.overrides)} ({point.run_id}){': ' if reason else ''}{reason}"
