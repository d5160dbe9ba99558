"""The measuring process: `python -m headcount.measure.session`, one request in, JSON lines out.

In: one line of JSON, {"waited_s", "configs"}, the configurations sharing one grid, device and
thread count. Out: lines {"event": "progress" | "record" | "error", …}. It ends when its parent
does: the parent holds the other end of stdin open for as long as it lives.
"""

import json
import os
import sys
import threading
import traceback
from typing import IO, Any

import torch

from headcount.config import Config, parse
from headcount.errors import HeadcountError
from headcount.measure import grid, host
from headcount.measure.memory import measure_memory
from headcount.measure.protocol import device_kind, device_name, headline
from headcount.measure.record import cost_record
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
    reporter.total = 2 * len(measure.contexts) * len(measure.batch_sizes) + len(configs)
    environment = describe(device, waited_s)

    # The first layout stands in the field twice: what its two names differ by is noise.
    candidates = [grid.Candidate(config, device) for config in [*configs, configs[0]]]
    watch, neighbours = host.HostWatch(), []
    kv_caches: dict[tuple[int, int], list[records.KVCache]] = {}
    for context in measure.contexts:
        for batch_size in measure.batch_sizes:
            for candidate in candidates:
                candidate.open(context, batch_size)
            for phase in ("prefill", "decode"):
                watch.co_running_cores()
                grid.measure_place(candidates, phase, context, batch_size, measure)
                neighbours.append(watch.co_running_cores())
                reporter.step(f"{phase} at context {context}, batch {batch_size}")
            kv_caches[context, batch_size] = [candidate.kv_cache() for candidate in candidates]
    environment["co_running_cores"] = round(sum(neighbours) / len(neighbours), 3)
    environment["co_running_cores_worst"] = round(max(neighbours), 3)
    floor = grid.noise_floor(candidates[0].points, candidates[-1].points)

    costs = []
    at_headline = kv_caches[headline(measure)]
    for config, candidate, kv_cache in zip(configs, candidates, at_headline, strict=False):
        memory = measure_memory(config, candidate.shape, device)
        reporter.step(f"memory of {config.layout.label}")
        costs.append(
            cost_record(
                config, candidate.points, memory, kv_cache, environment, floor, len(configs)
            )
        )
    return costs


def describe(device: torch.device, waited_s: float) -> dict[str, Any]:
    """The host, the device and the libraries that the session runs on."""
    cuda = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return {
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
