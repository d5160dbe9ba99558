"""Runs made from another run: their configuration, and the weights that they begin with."""

from collections.abc import Sequence
from typing import Any

from headcount.config import Config, Origin, parse
from headcount.errors import RequestError
from headcount.heads.source import Source
from headcount.heads.surgery import Pooling, Weights, convert, kept_reads, prune
from headcount.study.store import Study


def start_weights(config: Config, study: Study) -> Weights:
    """What a run with an origin begins with, from the checkpoint of the run beside it. RequestError
    where that is not there."""
    origin = config.origin
    assert origin is not None
    folder = study.run_folder(origin.run)
    if not (folder / "record.json").is_file():
        raise RequestError(
            f"origin.run={origin.run}: no such run in {study.folder}; valid: a completed run of the "
            "same study"
        )
    model = Source.of(folder).model()
    if origin.how == "pruned":
        assert origin.kept is not None
        return prune(model, origin.kept)
    return convert(model, config.layout.n_kv_heads, origin.how, config.seed)


def pruned(source: Source, kept: Sequence[Sequence[int]], more_steps: int) -> Config:
    """The configuration of a run with only these query heads, trained for some steps more."""
    before = source.config.shape.layer_layouts
    reads = [kept_reads(layer, heads) for layer, heads in zip(before, kept, strict=True)]
    kept_lists = [list(heads) for heads in kept]
    return _derived(source, {"heads": reads}, {"how": "pruned", "kept": kept_lists}, more_steps)


def converted(source: Source, n_kv_heads: int, how: Pooling, more_steps: int) -> Config:
    """The configuration of a run with fewer KV heads, trained for some steps more."""
    attention = "mqa" if n_kv_heads == 1 else "gqa"
    changed = {"n_kv_heads": n_kv_heads, "kv_group_size": None, "attention": attention}
    return _derived(source, changed, {"how": how}, more_steps)


def _derived(
    source: Source, model: dict[str, Any], origin: dict[str, Any], more_steps: int
) -> Config:
    """The source's configuration with another model. What the layout frees is not made up for, whatever
    the source's control did for it."""
    trained = source.record.training
    raw = source.config.model_dump(mode="json")
    raw["model"] |= model
    raw["control"] = {"name": "fixed_d_model"}
    raw["trainer"]["max_steps"] = trained.steps + more_steps
    raw["origin"] = Origin(
        run=source.record.run_id, steps=trained.steps, tokens=trained.tokens, **origin
    ).model_dump()
    return parse(raw)
