"""Cost records joined with runs: by layout and model shape, from one set-up at a time."""

from collections import defaultdict
from pathlib import Path
from typing import Any

from headcount.analysis.arms import shape_key
from headcount.analysis.words import listed
from headcount.study.records import Cost, Record
from headcount.study.store import Study


def every_cost(study: Study, records: list[Record], damaged: dict[Path, str]) -> list[Cost]:
    """Cost records of the study's folder, and those that only a run's record still holds; what cannot
    be read is told in `damaged`."""
    found = {cost.cost_id: cost for cost in study.cost_records(damaged)}
    for record in records:
        if record.cost:
            found.setdefault(record.cost.cost_id, record.cost)
    return list(found.values())


def _setup(cost: Cost) -> tuple[Any, ...]:
    """What latencies must share to be compared."""
    protocol = cost.protocol
    return (
        cost.device,
        cost.dtype,
        protocol.get("headline_context"),
        protocol.get("headline_batch_size"),
    )


def fitting_costs(records: list[Record], costs: list[Cost]) -> dict[str, list[Cost]]:
    """For each run the cost records of its layout and model shape, its own among them."""
    by_layout = defaultdict(list)
    for cost in costs:
        by_layout[shape_key(cost.layout)].append(cost)
    fitting: dict[str, list[Cost]] = {}
    found: dict[Any, list[Cost]] = {}
    for record in records:
        model = record.config.get("model", {})
        own = record.cost.cost_id if record.cost else None
        key = own, shape_key(record.layout), tuple(sorted((k, str(v)) for k, v in model.items()))
        if key not in found:
            # A record that names its cost is not joined with another task's of the same set-up.
            found[key] = [
                c
                for c in by_layout[shape_key(record.layout)]
                if c.cost_id == own
                or (
                    # A key that is None follows from others (`max_len` from the task's length).
                    all(v is None or c.shape.get(k, v) == v for k, v in model.items())
                    and (record.cost is None or _setup(c) != _setup(record.cost))
                )
            ]
        fitting[record.run_id] = found[key]
    return fitting


def one_setup(
    records: list[Record], fitting: dict[str, list[Cost]]
) -> tuple[dict[str, Cost], list[str]]:
    """Each run's cost record, all from one device, dtype, context and batch; newest measurement.

    Where a study was measured in several set-ups, the one that covers most layouts is shown.
    """
    layouts_in: dict[tuple[Any, ...], set[Any]] = defaultdict(set)
    newest: dict[tuple[Any, ...], str] = defaultdict(str)
    for record in records:
        for cost in fitting[record.run_id]:
            layouts_in[_setup(cost)].add(shape_key(record.layout))
            newest[_setup(cost)] = max(newest[_setup(cost)], cost.measured)
    if not layouts_in:
        return {}, []
    shown = max(layouts_in, key=lambda s: (len(layouts_in[s]), newest[s]))
    joined: dict[str, Cost] = {}
    left_out = set()
    for record in records:
        fits = [c for c in fitting[record.run_id] if _setup(c) == shown]
        if fits:
            joined[record.run_id] = max(fits, key=lambda c: c.measured)
        elif fitting[record.run_id]:
            left_out.add(record.layout.label)
    warnings = []
    if len(layouts_in) > 1:
        others = "; ".join(_setup_words(s) for s in layouts_in if s != shown)
        text = f"costs shown are from {_setup_words(shown)}; also measured, not mixed in: {others}"
        if left_out:
            text += f"; so without latency here: {listed(sorted(left_out))}"
        warnings.append(text)
    return joined, warnings


def _setup_words(setup: tuple[Any, ...]) -> str:
    device, dtype, context, batch = setup
    return f"{device}, {dtype}, context {context}, batch {batch}"
