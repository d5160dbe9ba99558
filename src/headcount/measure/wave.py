"""The cost wave: measure every layout that has no cost record yet, together, in a fresh process.

A fresh process, because a peak or a latency must not depend on what ran before; together, because
only interleaved layouts can be compared; alone on the host, because neighbours corrupt latency.
No torch here: the process that measures is the only one that needs it.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import IO, Any

from headcount.config import Config
from headcount.errors import HeadcountError
from headcount.measure.lock import host_lock
from headcount.measure.protocol import cost_id
from headcount.study.records import Cost
from headcount.study.store import Study

Progress = Callable[[str, int, int], None]
"""Told what is being measured, steps done, and steps in all."""


def cost_wave(
    study: Study, configs: Sequence[Config], progress: Progress | None = None
) -> dict[str, Cost]:
    """The cost record of every configuration, by cost_id; missing ones are measured and written.

    Measures in one process per measuring protocol (one, unless a sweep varies `measure.*`), and
    waits while another measurement holds the host. Raises HeadcountError, in one line, where
    measuring fails; what the process printed is then in `costs/session.log`.
    """
    report = progress or (lambda message, done, total: None)
    wanted = {cost_id(config): config for config in configs}
    records, missing = _split(study, wanted)
    if not missing:
        return records
    with host_lock(lambda: report("waiting for another measurement on this host", 0, 1)) as waited:
        # Whoever held the host may have measured the same layouts.
        records, missing = _split(study, wanted)
        for group in _by_protocol(missing):
            for cost in _session(study, group, waited, report):
                study.write_cost(cost)
                records[cost.cost_id] = cost
    return {key: records[key] for key in wanted}


def _split(study: Study, wanted: dict[str, Config]) -> tuple[dict[str, Cost], dict[str, Config]]:
    """The records that exist, and the configurations without one."""
    found = {key: study.cost(key) for key in wanted}
    records = {key: cost for key, cost in found.items() if cost is not None}
    return records, {key: wanted[key] for key in wanted if key not in records}


def _by_protocol(missing: dict[str, Config]) -> list[list[Config]]:
    """Groups that one process can measure: the same grid, device and threads; any dtype."""
    groups: dict[str, list[Config]] = {}
    for config in missing.values():
        protocol = config.measure.model_copy(update={"dtype": "fp32"})
        groups.setdefault(protocol.model_dump_json(), []).append(config)
    return list(groups.values())


def _session(study: Study, configs: list[Config], waited_s: float, report: Progress) -> list[Cost]:
    """Run one measuring process over `configs`; their cost records, in order."""
    request = {"waited_s": waited_s, "configs": [c.model_dump(mode="json") for c in configs]}
    with tempfile.TemporaryFile() as errors:
        child = _start(configs[0].measure.threads, errors)
        try:
            costs, reason = _follow(child, json.dumps(request), report)
        finally:
            child.kill()
            child.wait()
        if reason is None and len(costs) == len(configs):
            return costs
        log = study.costs / "session.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        errors.seek(0)
        log.write_bytes(errors.read())
    raise HeadcountError(f"measuring failed: {reason or _ended(child.returncode)} (see {log})")


def _start(threads: int, errors: IO[bytes]) -> subprocess.Popen[str]:
    """The measuring process, its threads fixed before any library counts the cores."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    return subprocess.Popen(
        [sys.executable, "-m", "headcount.measure.session"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env=environment,
        text=True,
    )


def _follow(
    child: subprocess.Popen[str], request: str, report: Progress
) -> tuple[list[Cost], str | None]:
    """Read the child's JSON lines to the end: its records, and why it failed if it says so."""
    assert child.stdin is not None
    assert child.stdout is not None
    costs: list[Cost] = []
    reason: str | None = None
    try:
        child.stdin.write(request + "\n")
        child.stdin.flush()  # left open: the child ends when this end of the pipe does
    except BrokenPipeError:
        pass  # it ended before it read; its exit status says why
    for line in child.stdout:
        event: dict[str, Any] = json.loads(line)
        match event["event"]:
            case "progress":
                report(event["message"], event["done"], event["total"])
            case "record":
                costs.append(Cost.model_validate(event["cost"]))
            case "error":
                reason = event["reason"]
    child.wait()
    return costs, reason


def _ended(returncode: int) -> str:
    if returncode < 0:
        return f"the process was ended by signal {-returncode}, as when memory runs out"
    return f"the process ended early with status {returncode}"
