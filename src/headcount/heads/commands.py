"""What `headcount inspect`, `prune` and `uptrain` do with a run's folder."""

from pathlib import Path

from headcount.heads.figures import MAP_TOKENS, Maps, figures, write_pictures
from headcount.heads.inspection import inspect
from headcount.heads.page import page
from headcount.heads.record import FILE, Inspection
from headcount.heads.sample import sample
from headcount.heads.source import CHECKPOINT, Source
from headcount.heads.watching import full_maps
from headcount.study.store import write_atomically
from headcount.study.watch import Watch
from headcount.tasks.base import Split

SPLIT: Split = "val"
"""Heads are looked at, and chosen, on the validation split: the test split stays for the result."""


def inspect_run(folder: Path, n_sequences: int) -> tuple[Inspection, Path]:
    """Look inside a run; writes heads/{index.html,inspection.json,*.png} into its folder. Returns
    what was seen and the page's path."""
    source = Source.of(folder)
    model, task = source.model(), source.task()
    batches = sample(task, SPLIT, n_sequences)
    with Watch("inspecting") as watch:
        seen = inspect(source.record, CHECKPOINT, model, task, batches, SPLIT, watch.update)
    first = next(batches[0].rows(1))
    n = min(MAP_TOKENS, first.inputs.size(1))
    symbols = (
        task.symbols(first.inputs[0, :n])
        if model.shape.inputs == "tokens"
        else [f"vector {i}" for i in range(n)]
    )
    maps = Maps(symbols, [weights[0] for weights in full_maps(model, first, n)])
    heads = folder / "heads"
    write_pictures(seen, maps, heads)
    write_atomically(folder / FILE, seen.model_dump_json(by_alias=True, indent=1))
    path = heads / "index.html"
    write_atomically(path, page(seen, figures(seen, maps), source.study.name))
    return seen, path
