"""Assembles a cost record from what a session measured. No torch."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from headcount.config import Config, Origin
from headcount.measure import protocol
from headcount.measure.compare import BUSY_CORES
from headcount.shape import ModelShape
from headcount.study import records


@dataclass(frozen=True)
class Measured:
    """What a session measured of one layout."""

    points: list[records.Point]
    train_step: records.Point | None
    memory: records.Memory
    kv_cache: records.KVCache


def cost_record(
    config: Config,
    measured: Measured,
    environment: dict[str, Any],
    noise_floor: float,
    interleaved: int,
) -> records.Cost:
    """The cost record of one configuration.

    environment: the session's, with the load of the host while it measured. noise_floor: of the
    session, relative. interleaved: layouts that were timed together.
    """
    shape, timed = config.shape, protocol.measured_shape(config)
    device = protocol.device_name(protocol.device_kind(config.measure.device))
    return records.Cost(
        cost_id=protocol.cost_id(config),
        layout=layout_record(config),
        shape=timed.as_dict(),
        dtype=config.measure.dtype,
        device=device,
        backend=config.model.backend,
        protocol=_protocol(config, interleaved),
        environment=environment,
        points=measured.points,
        train_step=measured.train_step,
        memory=measured.memory,
        kv_cache=measured.kv_cache,
        compute=records.Compute(
            n_params=shape.n_params,
            n_params_attention=shape.n_params_by_part["attention"],
            train_flops_per_token=shape.train_flops_per_token(config.task.seq_len),
        ),
        noise_floor=noise_floor,
        warnings=_warnings(shape, timed, environment),
        measured=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def layout_record(config: Config) -> records.Layout:
    layout, layers = config.layout, config.model.layers
    widest = layers or (layout,)
    kept = sum(layer.n_heads for layer in layers)
    of = f" {kept} of {layout.n_heads * len(layers)} heads" if layers else ""
    return records.Layout(
        kind=layout.kind,
        d_model=layout.d_model,
        n_heads=max(layer.n_heads for layer in widest),
        n_kv_heads=max(layer.n_kv_heads for layer in widest),
        heads=config.model.heads,
        d_head=layout.d_head,
        d_latent=layout.d_latent,
        d_rope=layout.d_rope,
        label=layout.label + of,
    )


def run_layout_record(config: Config) -> records.Layout:
    """The layout of a run, with where it comes from and what its control came to."""
    layout, found = layout_record(config), config.matched
    if config.origin is not None:
        layout.origin = origin_words(config.origin, config.own_steps)
        layout.label += f", {layout.origin}"
    if found is None:
        return layout
    layout.matched = records.Matched(
        control=config.control.name,
        key=found.key,
        value=found.value,
        target=found.target,
        achieved=found.achieved,
        residual=found.residual,
    )
    return layout


def origin_words(origin: Origin, own_steps: int) -> str:
    """How a model came about that was not trained from scratch: `pruned`, `pruned + 5%`, `converted`,
    `uptrained 5%`; another way than the mean of KV heads is named. The share is that of the steps it
    was trained for since, in those before."""
    share = f"{100 * own_steps / origin.steps:.2g}%"
    if origin.how == "pruned":
        return f"pruned + {share}" if own_steps else "pruned"
    way = "" if origin.how == "mean" else f" ({origin.how})"
    return (f"uptrained {share}" if own_steps else "converted") + way


def _protocol(config: Config, interleaved: int) -> dict[str, Any]:
    """How it was measured; with shape, dtype, backend and device this is the record's identity."""
    context, batch_size = protocol.headline(config.measure)
    identity = protocol.identity(config)
    return {
        "version": protocol.VERSION,
        **identity["protocol"],
        "training": identity["training"],
        "headline_context": context,
        "headline_batch_size": batch_size,
        "interleaved": interleaved,
        "min_point_ms": protocol.MIN_POINT_MS,
        "min_warmup_ms": protocol.MIN_WARMUP_MS,
    }


def _warnings(trained: ModelShape, timed: ModelShape, environment: dict[str, Any]) -> list[str]:
    """What a reader must know before comparing this record with another."""
    found = []
    if timed.max_len > trained.max_len:
        found.append(
            f"learned positions were extended from {trained.max_len} to {timed.max_len} to "
            "measure the largest context; weights_bytes is of the model as trained"
        )
    busy = environment["co_running_cores"]
    if busy > BUSY_CORES:
        found.append(
            f"not comparable: other processes used {busy:.2f} cores while this was measured"
        )
    return found
