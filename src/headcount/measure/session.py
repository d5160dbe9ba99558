"""The measuring process: `python -m headcount.measure.session`, one request in, JSON lines out.

In: one line of JSON, {"waited_s", "configs"}, the configurations sharing one grid, device and
thread count. Out: lines {"event": "progress" | "record" | "error", …}. It ends when its parent
does: the parent holds the other end of stdin open for as long as it lives.
"""

import itertools
import json
import os
import sys
import threading
import traceback
import uuid
from typing import IO, Any

import torch

from headcount.config import Config, parse
from headcount.errors import HeadcountError
from headcount.measure import grid, host
from headcount.measure.ceilings import measure_ceilings
from headcount.measure.inputs import free_bytes
from headcount.measure.memory import measure_memory
from headcount.measure.protocol import device_kind, device_name, headline
from headcount.measure.record import Measured, cost_record
from headcount.measure.training import held_bytes
from headcount.study import records


class Reporter:
    """Writes events for the parent."""

    def __init__(self, out: IO[str], total: int = 0) -> None:
        self.out, self.total, self.done = out, total, 0

    def event(self, event: str, **fields: Any) -> None:
        self.out.write(json.dumps({"event": event, **fields}) + "\n")
        self.out.flush()

    def step(self, message: str) -> None:
        """The work called `message` is done."""
        self.done += 1
        self.event("progress", message=message, done=self.done, total=self.total)


def run(configs: list[Config], waited_s: float, reporter: Reporter) -> list[records.Cost]:
    """Measure all configurations together; their cost records, in order."""
    measure = configs[0].measure
    device = torch.device(device_kind(measure.device))
    torch.set_num_threads(measure.threads)
    reporter.total = 2 * len(measure.contexts) * len(measure.batch_sizes) + 2 + len(configs)
    environment = describe(device, waited_s)
    watch = host.HostWatch()

    # The first layout stands in the field twice: what its two names differ by is noise.
    candidates = [grid.Candidate(config, device) for config in [*configs, configs[0]]]
    grid.require_room(candidates, measure)
    ceilings = measure_ceilings(device, [config.measure.dtype for config in configs])
    reporter.step("ceilings of the device")
    kv_caches: dict[tuple[int, int], list[records.KVCache]] = {}
    for context, batch_size in itertools.product(measure.contexts, measure.batch_sizes):
        for candidate in candidates:
            candidate.open(context, batch_size)
        for phase in grid.PHASES:
            grid.measure_place(candidates, phase, context, batch_size, measure)
            watch.lap()
            reporter.step(f"{phase} at context {context}, batch {batch_size}")
        kv_caches[context, batch_size] = [candidate.kv_cache() for candidate in candidates]
    floor = grid.noise_floor(candidates[0].points, candidates[-1].points)
    train_steps = _train_steps(configs, device, measure.repeats)
    watch.lap()
    reporter.step("training step")
    environment |= {"ceilings": ceilings, **watch.summary()}

    costs = []
    at_headline = kv_caches[headline(measure)]
    for config, candidate, kv_cache, train_step in zip(
        configs, candidates[:-1], at_headline[:-1], train_steps, strict=True
    ):
        memory = measure_memory(config, candidate.shape, device)
        reporter.step(f"memory of {config.layout.label}")
        measured = Measured(
            points=grid.bound_points(candidate, ceilings),
            train_step=train_step,
            memory=memory,
            kv_cache=kv_cache,
        )
        costs.append(cost_record(config, measured, environment, floor, len(configs)))
    return costs


def _train_steps(
    configs: list[Config], device: torch.device, repeats: int
) -> list[records.Point] | list[None]:
    """A training step of each, timed together; None for each where they would fill more than half
    of what is free. A step is long, so a tenth of the repeats will do."""
    if sum(held_bytes(config) for config in configs) > free_bytes(device) / 2:
        return [None] * len(configs)
    return grid.measure_training(configs, device, max(3, repeats // 10))


def describe(device: torch.device, waited_s: float) -> dict[str, Any]:
    """The host, the device and the libraries that the session runs on."""
    cuda = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return {
        "session": uuid.uuid4().hex[:12],
        **host.describe(),
        "cpu": device_name("cpu"),
        **({"accelerator": cuda.name, "cuda": torch.version.cuda} if cuda else {}),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "waited_s": round(waited_s, 3),
    }


def main() -> int:
    """Serve one request; status 1 where measuring failed."""
    # Whatever a library prints must not fall between the events.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    reporter = Reporter(out)
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        configs = [parse(raw) for raw in request["configs"]]
        for cost in run(configs, request["waited_s"], reporter):
            reporter.event("record", cost=cost.model_dump(mode="json", by_alias=True))
    except Exception as error:
        traceback.print_exc()
        reporter.event("error", reason=_reason(error))
        return 1
    return 0


def _end_with_parent() -> None:
    """Nothing more comes on stdin, so its end is the parent's."""
    sys.stdin.read()
    os._exit(1)


def _reason(error: Exception) -> str:
    """The first line of what went wrong."""
    line = (str(error).splitlines() or [""])[0]
    return line if isinstance(error, HeadcountError) else f"{type(error).__name__}: {line}"


if __name__ == "__main__":
    torch.set_num_interop_threads(1)
    sys.exit(main())
