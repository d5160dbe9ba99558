"""What `headcount inspect`, `prune` and `uptrain` do with a run's folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headcount.analysis.words import bytes_text, millis
from headcount.config import Config
from headcount.errors import HeadcountError, RequestError
from headcount.heads import derive
from headcount.heads.ablation import Ablator
from headcount.heads.figures import (
    MAP_TOKENS,
    Maps,
    figures,
    pruning_figure,
    write_pictures,
    write_pruning_picture,
)
from headcount.heads.inspection import inspect
from headcount.heads.order import Head, by_importance, curve, fewest, greedy, kept_heads
from headcount.heads.page import inspection_page, pruning_page
from headcount.heads.record import FILE, PAGE, PRUNING, Inspection, Order, Pruning, Removal
from headcount.heads.requests import prune_request, uptrain_request
from headcount.heads.sample import sample
from headcount.heads.source import CHECKPOINT, Source
from headcount.heads.surgery import check_groups, refuse_latent
from headcount.heads.watching import full_maps
from headcount.heads.words import MARGIN, pruning_sentences
from headcount.measure.compare import compare
from headcount.measure.wave import cost_wave
from headcount.model import Transformer
from headcount.study.conduct import finish
from headcount.study.records import Cost, Record
from headcount.study.run import execute
from headcount.study.store import write_atomically
from headcount.study.tell import say
from headcount.study.watch import Watch
from headcount.tasks.base import Split

SPLIT: Split = "val"
"""Heads are looked at, and chosen, on the validation split: the test split stays for the result."""

SEQUENCES = 64
"""Sequences that heads are chosen on."""


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
    path = folder / PAGE
    write_atomically(path, inspection_page(seen, figures(seen, maps), source.study.name))
    return seen, path


def prune_run(folder: Path, words: Sequence[str]) -> int:
    """Cut heads out of a run's model: a new run in the same study, its quality and cost measured. The
    exit status."""
    source = Source.of(folder)
    shape = source.config.shape
    refuse_latent(shape, "prune")
    request = prune_request(words, shape)
    model = source.model()
    gone = request.heads
    if gone is None:
        gone = _chosen(source, model, request.by, request.keep)
    config = derive.pruned(source, kept_heads(model, gone), _steps(source, request.alpha))
    return _make(source, config)


def uptrain_run(folder: Path, words: Sequence[str]) -> int:
    """Give a run's model fewer KV heads and train it on: a new run in the same study. The exit status."""
    source = Source.of(folder)
    request = uptrain_request(words)
    check_groups(source.config.shape, request.n_kv_heads)
    steps = _steps(source, request.alpha)
    return _make(source, derive.converted(source, request.n_kv_heads, request.how, steps))


def _steps(source: Source, alpha: float) -> int:
    """A share of the run's steps, at least one unless the share is 0."""
    return max(1, round(alpha * source.record.training.steps)) if alpha else 0


def _chosen(source: Source, model: Transformer, by: Order, keep: int | None) -> tuple[Head, ...]:
    """The heads to cut out; the curves that they were chosen by are written beside the run."""
    task = source.task()
    batches = sample(task, SPLIT, SEQUENCES)
    with Watch("choosing heads") as watch:
        ablator = Ablator(model, task, batches)
        orders: dict[Order, list[Removal]] = {
            "importance": curve(ablator, by_importance(model, task, batches))
        }
        if by == "greedy":
            orders["greedy"] = greedy(ablator, lambda done, total: watch.update("", done, total))
    seen = Pruning(
        run_id=source.record.run_id,
        label=source.record.layout.label,
        split=SPLIT,
        n_sequences=sum(len(b.inputs) for b in batches),
        loss=ablator.loss,
        loss_unit=task.loss_unit,
        n_heads=len(orders["importance"]) + 1,
        orders=orders,
    )
    n = seen.n_heads - keep if keep is not None else fewest(orders[by], MARGIN)
    for sentence in pruning_sentences(seen):
        say(sentence)
    if not n:
        raise RequestError(
            f"by={by}: no head can go without a loss of {MARGIN:g} {task.loss_unit}; valid: keep=N"
        )
    write_pruning_picture(seen, source.folder / "heads" / "pruning.png")
    write_atomically(source.folder / PRUNING, seen.model_dump_json(by_alias=True, indent=1))
    path = source.folder / "heads" / "pruning.html"
    write_atomically(path, pruning_page(seen, [pruning_figure(seen)], source.study.name))
    say(f"curves: {path}")
    return tuple((r.layer, r.head) for r in orders[by][:n])


@dataclass(frozen=True)
class _Costs:
    """Before and after, where they could be measured."""

    before: Cost | None
    after: Cost | None


def _make(source: Source, config: Config) -> int:
    """Measure the cost of the new run, carry it out, tell what came of it, and write the report."""
    study = source.study
    costs = _costs(source, config)
    record = execute(config)
    if record is None or record.status != "completed":
        reason = record.error.message if record and record.error else "another process has it"
        say(f"{record.layout.label if record else config.layout.label}: not completed: {reason}")
        return 1
    for line in _told(source.record, record, costs):
        say(line)
    finish(study)
    say(f"run: {study.run_folder(record.run_id)}")
    return 0


def _costs(source: Source, config: Config) -> _Costs:
    """The cost records of the run and of what is made of it; quality does not hang on them."""
    try:
        with Watch("measuring costs") as watch:
            # Together, so that what is missing of both is measured interleaved.
            found = list(cost_wave(source.study, [source.config, config], watch.update).values())
    except HeadcountError as error:
        say(f"no costs: {error}")
        return _Costs(None, None)
    return _Costs(found[0], found[-1])


def _told(before: Record, after: Record, costs: _Costs) -> list[str]:
    """Before and after, a line a figure."""
    lines = [f"{before.layout.label} (run {before.run_id}) → {after.layout.label}"]
    unit = after.quality.loss_unit
    for what, key in (("validation loss", "val_loss"), ("test loss", "test_loss")):
        old, new = getattr(before.quality, key), getattr(after.quality, key)
        if old is not None and new is not None:
            lines.append(f"  {what}: {old:.4f} → {new:.4f} {unit}")
    lines.append(f"  tokens: {before.training.tokens:,} → {after.training.tokens:,} in all")
    if costs.before is None or costs.after is None:
        return lines
    old, new = costs.before, costs.after
    lines.append(f"  parameters: {old.compute.n_params:,} → {new.compute.n_params:,}")
    caches = (bytes_text(c.kv_cache.bytes_per_token) for c in (old, new))
    lines.append(f"  KV cache per token: {' → '.join(caches)}")
    context, batch_size = (new.protocol[f"headline_{k}"] for k in ("context", "batch_size"))
    times = [c.point("decode", context, batch_size) for c in (old, new)]
    compared = compare(old, new, "decode", context, batch_size)
    if compared is not None:
        medians = " → ".join(millis(p.p50_ms) for p in times if p)
        notes = "".join(f"; {note}" for note in compared.notes)
        lines.append(
            f"  decode: {medians} ms, median: {compared.verdict}, ratio {compared.ratio:.2f} "
            f"[{compared.low:.2f}, {compared.high:.2f}] (context {context:,}, batch {batch_size}, "
            f"{new.dtype}, {new.device}, noise floor {compared.noise_floor:.0%}{notes})"
        )
    return lines
