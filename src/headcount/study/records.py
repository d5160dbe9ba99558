"""What a study leaves behind: one record a run (quality) and one a layout and device (cost).

Records are the hinge of the program: everything before writes them, everything after reads them
and nothing else. So this file knows no torch, and every figure in it has a unit in its name.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Status = Literal["running", "completed", "diverged", "failed", "interrupted"]


class Strict(BaseModel):
    """A model that refuses fields it does not know."""

    model_config = ConfigDict(extra="forbid", validate_by_name=True, validate_by_alias=True)


class Matched(Strict):
    """What an iso control came to: a quantity brought to a reference's by turning one dial."""

    control: str
    key: str
    """The key under `model` that was solved for."""
    value: int
    target: int
    """Of the reference: parameters, FLOPs of a forward, or KV-cache bytes a token at 2 bytes."""
    achieved: int
    residual: float
    """(achieved − target) / target."""


class Layout(Strict):
    """The head layout of a run, as built."""

    kind: str
    d_model: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_latent: int = 0
    """MLA: width of the cached latent; 0 for every other kind."""
    d_rope: int = 0
    """MLA: width of the shared rotary key."""
    heads: list[list[int]] | None = None
    """Pruned, where layers differ: for each layer and query head the KV head that it reads. n_heads
    and n_kv_heads are then those of the layer that has most."""
    origin: str | None = None
    """Of a run that did not start from random weights: `pruned`, `converted`, `uptrained 5%`."""
    label: str
    matched: Matched | None = None
    """Of a run: what its control came to; None where that solves for nothing, and in a cost record."""

    @property
    def mean_heads(self) -> float:
        """Query heads of a layer, on average."""
        return sum(map(len, self.heads)) / len(self.heads) if self.heads else float(self.n_heads)


class Slice(Strict):
    """Loss on a named part of the test tokens."""

    loss: float
    """Mean loss over the slice's scored tokens, in the run's `loss_unit`."""
    count: int
    """Scored tokens in the slice."""
    low: float | None = None
    high: float | None = None
    """95% interval of the loss over test sequences, for this run's weights; it says how well the
    test set pins the figure, nothing of seeds. None where one sequence holds the whole slice."""
    accuracy: float | None = None
    """Share answered right, where the task has an accuracy."""


class Quality(Strict):
    """How well the run's model does; None where it was not reached or the task has no such figure."""

    val_loss: float | None = None
    """Best validation loss over the run: mean over scored tokens."""
    val_loss_last: float | None = None
    """Validation loss at the final step."""
    val_best_step: int | None = None
    test_loss: float | None = None
    """Test loss of the best checkpoint (by validation loss)."""
    test_accuracy: float | None = None
    test_bits_per_byte: float | None = None
    """Text alone: test loss in bits over the bytes it predicts, comparable across tokenizers."""
    loss_unit: Literal["nats", "NMSE"] = "nats"
    """Of every loss of the run. NMSE: squared error as a share of the answer's variance."""
    slices: dict[str, Slice] = Field(default_factory=dict)
    """Test loss by slice."""


class Training(Strict):
    """What the run spent."""

    steps: int = 0
    """Optimiser steps done; of a pruned or uptrained run, those of the run it was made from included."""
    tokens: int = 0
    """Training tokens seen, over all of these steps."""
    seconds: float = 0.0
    """Time inside training steps, summed over resumptions; evaluation and set-up excluded."""
    tokens_per_s: float | None = None
    """Training throughput, evaluation excluded; with other jobs beside it, so no cost figure."""
    resumed_from: list[int] = Field(default_factory=list)
    """Steps at which an interrupted run was taken up again."""
    started: str | None = None
    finished: str | None = None
    """UTC, ISO 8601."""


class Point(Strict):
    """One timed place of the cost grid."""

    phase: Literal["prefill", "decode", "train"]
    context: int
    """Prefill: tokens of the prompt. Decode: tokens in the cache that the one new token attends to,
    itself included. Train: tokens of a sequence."""
    batch_size: int
    samples_ms: list[float]
    """Every timed repeat, in order: milliseconds a prefill, or a decode or training step of the
    whole batch."""
    p50_ms: float
    p90_ms: float
    p99_ms: float
    kernel: str
    """The attention kernel that ran."""
    kv_sharing: str
    """How query heads shared KV heads: `grouped rows` (no copy) or `repeated` (copied per query)."""
    bound_ms: float | None = None
    """The least this step could take by the ceilings measured in the session (roofline)."""
    bound_by: Literal["compute", "memory"] | None = None
    """The ceiling that sets the bound."""


class Memory(Strict):
    """Peak bytes by the allocator's own account, parameters included."""

    weights_bytes: int
    decode_peak_bytes: int
    train_peak_bytes: int | None
    """None where the device had no room for a training step."""
    method: str


class KVCache(Strict):
    """Read off the live cache tensors and checked against the formula."""

    bytes_per_token: int
    """All layers, one sequence."""
    allocated_bytes: int
    used_bytes: int


class Compute(Strict):
    """Counted from the shape, no measurement."""

    n_params: int
    n_params_attention: int
    """Attention weights, all layers."""
    train_flops_per_token: int
    """PaLM convention: 6N + 12·n_layers·n_heads·d_head·T, no causal halving."""


class Cost(Strict):
    """What one layout costs on one device; it depends on no seed and no weight."""

    schema_: int = Field(1, alias="schema")
    cost_id: str
    layout: Layout
    shape: dict[str, Any]
    """The model's shape as measured."""
    dtype: str
    device: str
    """Name of the device as the system gives it."""
    backend: str
    protocol: dict[str, Any]
    """contexts, batch_sizes, repeats, warm-up, threads, headline context and batch."""
    environment: dict[str, Any]
    """Versions, threads, load of the host while measuring."""
    points: list[Point]
    """Prefill and decode over the grid of contexts and batch sizes."""
    train_step: Point | None = None
    """One whole training step at the task's batch and length, AdamW's update included; None where
    there was no room to time all layouts together."""
    memory: Memory
    kv_cache: KVCache
    compute: Compute
    noise_floor: float | None = None
    """Relative difference of medians of one layout measured twice in the session (A/A)."""
    warnings: list[str] = Field(default_factory=list)
    measured: str

    def point(self, phase: str, context: int, batch_size: int) -> Point | None:
        """The grid point asked for, or None where it was not measured."""
        for p in self.points:
            if (p.phase, p.context, p.batch_size) == (phase, context, batch_size):
                return p
        return None

    def headline(self) -> dict[str, Any]:
        """The pinned cost keys, flat; latencies at the protocol's headline context and batch."""
        at = (self.protocol["headline_context"], self.protocol["headline_batch_size"])
        prefill, decode = self.point("prefill", *at), self.point("decode", *at)
        return {
            "latency/prefill_ms_p50": prefill and prefill.p50_ms,
            "latency/decode_ms_per_token_p50": decode and decode.p50_ms,
            "latency/decode_ms_per_token_p90": decode and decode.p90_ms,
            "memory/weights_bytes": self.memory.weights_bytes,
            "memory/decode_peak_bytes": self.memory.decode_peak_bytes,
            "memory/train_peak_bytes": self.memory.train_peak_bytes,
            "kv_cache/bytes_per_token": self.kv_cache.bytes_per_token,
            "kv_cache/allocated_bytes": self.kv_cache.allocated_bytes,
            "compute/n_params": self.compute.n_params,
            "compute/n_params_attention": self.compute.n_params_attention,
            "compute/train_flops_per_token": self.compute.train_flops_per_token,
        }


class Failure(Strict):
    """Why a run did not complete."""

    type: str
    message: str
    """The first line."""
    traceback: str


class Record(Strict):
    """One run: what was asked, what came out, where and with which code."""

    schema_: int = Field(1, alias="schema")
    run_id: str
    study: str
    status: Status
    config: dict[str, Any]
    """Resolved: as it ran."""
    layout: Layout
    quality: Quality = Field(default_factory=Quality)
    training: Training = Field(default_factory=Training)
    cost: Cost | None = None
    """The cost record of the run's layout, as it stood when the run ended."""
    environment: dict[str, Any] = Field(default_factory=dict)
    code: dict[str, Any] = Field(default_factory=dict)
    """version, source_hash (of the package's files), git commit where there is one, data_hash."""
    error: Failure | None = None

    def headline(self) -> dict[str, Any]:
        """The pinned keys, flat, as W&B's summary and `table.csv` show them."""
        q, t = self.quality, self.training
        flat: dict[str, Any] = {
            "layout/kind": self.layout.kind,
            "layout/n_heads": self.layout.n_heads,
            "layout/n_kv_heads": self.layout.n_kv_heads,
            "layout/d_head": self.layout.d_head,
            "quality/val_loss": q.val_loss,
            "quality/val_loss_last": q.val_loss_last,
            "quality/test_loss": q.test_loss,
            "quality/test_accuracy": q.test_accuracy,
            "quality/test_bits_per_byte": q.test_bits_per_byte,
            **{f"quality/slice/{name}": s.loss for name, s in q.slices.items()},
            **(self.cost.headline() if self.cost else {}),
            "training/tokens": t.tokens,
            "training/steps": t.steps,
            "training/tokens_per_s": t.tokens_per_s,
        }
        return {key: value for key, value in flat.items() if value is not None}
