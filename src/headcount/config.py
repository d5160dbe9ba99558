"""The typed configuration: what a request may say, and the checks that cross its fields.

Hydra composes `conf/` and the overrides; `parse` turns the result into a `Config` or raises a
RequestError of one line. Nothing here imports torch, so a wrong request fails in a moment.
"""

import difflib
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field, StringConstraints, ValidationError

from headcount.controls import Dial, Matched, Quantity
from headcount.errors import CombinationError, LayoutError, RequestError
from headcount.layout import HeadLayout
from headcount.resolve import matched, resolved
from headcount.section import TRUTH_VALUE, Name, PositiveInt, Section
from headcount.shape import Bias, DType, MLPKind, ModelShape, Norm, Position, torch_mha_lacks
from headcount.task_config import Task


class Model(Section):
    """The model; `None` is filled in by `parse`: d_head = d_model/n_heads, d_ff by the MLP's rule."""

    attention: Literal["mha", "gqa", "mqa", "mla"] = "mha"
    d_model: int
    n_layers: PositiveInt
    n_heads: int
    n_kv_heads: int | None = None
    kv_group_size: int | None = None
    d_head: int | None = None
    d_latent: int | None = None
    """MLA: width of the cached latent; `None` is 4·d_head (DeepSeek-V2, section 2.1.4)."""
    d_rope: int | None = None
    """MLA: width of the shared rotary key; `None` is d_head/2 under RoPE (likewise), else 0."""
    d_ff: PositiveInt | None = None
    mlp: MLPKind
    position: Position
    norm: Norm
    bias: Bias = "none"
    qk_norm: bool = False
    dropout: float = Field(ge=0, lt=1)
    """Of the residual branches and the embedding."""
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    """Of the attention weights."""
    tie_embeddings: bool
    vocab_size: PositiveInt | None = None
    """Rows of the embedding and of the output head; `None` is as many as the task needs."""
    max_len: PositiveInt | None = None
    """Positions of a learned table; `None` is the task's seq_len."""
    backend: Literal["sdpa", "eager", "flex", "torch_mha"]
    heads: list[list[int]] | None = None
    """Where pruning has left layers different: for each layer and query head the KV head that it
    reads. `None`: every layer as the numbers above say."""

    @property
    def layers(self) -> tuple[HeadLayout, ...]:
        """Each layer's layout where they differ; empty where all are `layout`."""
        d_head = self.layout.d_head
        return tuple(HeadLayout.reading(self.d_model, d_head, r) for r in self.heads or ())

    @property
    def layout(self) -> HeadLayout:
        return HeadLayout.of(
            self.d_model,
            self.n_heads,
            self.n_kv_heads,
            self.d_head,
            self.d_latent or 0,
            self.d_rope or 0,
        )


class Origin(Section):
    """The run that a model was made from, which it goes on from instead of random weights. Written by
    `headcount prune` and `headcount uptrain`."""

    run: Name
    steps: PositiveInt
    """Steps that the run had been trained for, the run that it was made from included."""
    tokens: PositiveInt
    """Tokens likewise."""
    how: Literal["pruned", "mean", "first", "random"]
    """Heads cut out; or each group's KV heads made one: their mean, the first, or a new random one
    (Ainslie et al. 2023, section 2.1)."""
    kept: list[list[int]] | None = None
    """Pruned: the query heads of each layer that were kept, as the run numbers them."""


class Reference(Section):
    """The model whose parameters, FLOPs or cache a control holds; the rest is as in `model`.

    Without n_heads it is MHA that fills d_model, which costs the same whatever its head count.
    """

    n_heads: PositiveInt | None = None
    n_kv_heads: PositiveInt | None = None
    d_head: PositiveInt | None = None
    d_ff: PositiveInt | None = None
    n_layers: PositiveInt | None = None
    """`None` of these two is what `model` asks for, before the control turns it."""


class Matching(Section):
    """A control that brings a quantity to the reference's by turning one dial."""

    quantity: ClassVar[Quantity]
    by: Dial
    reference: Reference = Reference()
    tolerance: float = Field(0.02, ge=0)
    """How far off, as a fraction of the target, the nearest setting may lie."""
    multiple: PositiveInt = 8
    """d_ff is rounded to a multiple of this."""


class FixedDModel(Section):
    """d_model and every other size stay; what a layout frees or costs is not made up for."""

    name: Literal["fixed_d_model"]


class FixedDHead(Section):
    """Every head is d_head wide: more heads widen the attention, d_model stays."""

    name: Literal["fixed_d_head"]
    d_head: PositiveInt


class IsoParams(Matching):
    """Parameters stay, made up for in the FFN, in query heads (KV heads stay) or in layers."""

    name: Literal["iso_params"]
    quantity: ClassVar[Quantity] = "params"
    by: Literal["ffn", "heads", "depth"] = "ffn"


class IsoFlops(Matching):
    """FLOPs of a forward over task.seq_len stay, made up for likewise."""

    name: Literal["iso_flops"]
    quantity: ClassVar[Quantity] = "flops"
    by: Literal["ffn", "heads", "depth"] = "ffn"


class IsoKVBytes(Matching):
    """KV-cache bytes a token stay, by KV heads, the width of heads, MLA's latent or layers."""

    name: Literal["iso_kv_bytes"]
    quantity: ClassVar[Quantity] = "kv_bytes"
    by: Literal["kv_heads", "d_head", "latent", "depth"] = "kv_heads"


Control = Annotated[
    FixedDModel | FixedDHead | IsoParams | IsoFlops | IsoKVBytes, Field(discriminator="name")
]
"""What happens to what a layout frees or costs."""


class Optim(Section):
    """AdamW; linear warm-up to `lr`, then a cosine to `lr * min_lr_ratio`, measured in steps."""

    lr: float = Field(gt=0)
    weight_decay: float = Field(ge=0)
    beta1: float = Field(ge=0, lt=1)
    beta2: float = Field(ge=0, lt=1)
    warmup_steps: Annotated[int, Field(ge=0)]
    min_lr_ratio: float = Field(ge=0, le=1)
    grad_clip: float = Field(ge=0)
    """Largest gradient norm; 0 switches clipping off."""


class Trainer(Section):
    max_steps: PositiveInt
    accumulate_grad_batches: PositiveInt
    """Each step's batch is `task.batch_size` sequences, taken in this many equal parts."""
    val_every_steps: PositiveInt
    precision: Literal["32-true", "bf16-mixed", "bf16-true", "16-mixed"]
    accelerator: Literal["auto", "cpu", "gpu", "cuda", "mps"]
    devices: PositiveInt
    strategy: Name
    threads: PositiveInt
    """CPU threads of the process: one is what keeps parallel jobs fast and results the same."""
    compile: bool = False
    """Compile each block (torch.compile). Some 20 s before the first step, so for longer runs."""

    @property
    def fused(self) -> bool | None:
        """Whether AdamW is the fused one. For float16, whose gradients that one would unscale by itself
        after they were clipped, PyTorch chooses among the others."""
        return None if self.precision == "16-mixed" else True


class Measure(Section):
    """The protocol of the cost wave."""

    contexts: list[PositiveInt] = Field(min_length=1)
    batch_sizes: list[PositiveInt] = Field(min_length=1)
    dtype: DType
    device: Literal["auto", "cpu", "cuda", "mps"]
    repeats: Annotated[int, Field(ge=3)]
    warmup: Annotated[int, Field(ge=1)]
    threads: PositiveInt


class Account(Section):
    dtype: DType
    seq_len: PositiveInt | None = None
    """Tokens at which arithmetic is counted; `None` is the task's seq_len."""


class Logger(Section):
    name: Literal["wandb", "csv", "tensorboard", "none"]
    project: Name = "headcount"
    entity: Name | None = None
    mode: Literal["offline", "online"] = "offline"
    every_steps: PositiveInt = 10
    """Steps between points of a training curve in W&B; validations always go there, and the run's
    own metrics.jsonl has every step."""
    checkpoints: bool = False
    """Upload the best checkpoint as an artifact."""
    latency_weight: float = Field(default=0.02, ge=0)
    """Nats of validation loss that a halved decode latency is worth, in objective/quality_latency."""


class Paths(Section):
    results: str


class SharedLR(Section):
    """Every layout trains at the learning rate that is asked for."""

    name: Literal["shared_lr"] = "shared_lr"


class Tuned(Section):
    """A learning rate for each layout, chosen by validation loss on seeds of their own."""

    name: Literal["tuned"]
    lr_factors: list[Annotated[float, Field(gt=0)]] = Field(min_length=3)
    """Rates that are tried, as multiples of `optim.lr`; fewer than three have no inner one."""
    seeds: list[Annotated[int, Field(ge=0, lt=2**31)]] = Field(min_length=1)
    """That choose; none of those that report."""


Protocol = Annotated[SharedLR | Tuned, Field(discriminator="name")]


class Orders(Section):
    """How a study is carried out. No part of any run: its keys stand at the top of `conf/`, beside
    the run's own."""

    plan_only: bool
    """Tell what would run, write plan.json, and run nothing."""
    shard: Annotated[str, StringConstraints(pattern=r"^[1-9]\d*/[1-9]\d*$")] | None
    """`2/8`: the second of eight parts of the plan, for hosts that share no coordinator."""
    retries: Annotated[int, Field(ge=0)]
    """How often a failed run is tried again before the command ends."""
    fail_fast: bool
    """Start no further run once one has failed."""
    protocol: Protocol = SharedLR()
    """Where each layout's learning rate is from."""


class Config(Section):
    """A whole request for one run, resolved."""

    study: Name
    seed: Annotated[int, Field(ge=0, lt=2**31)]
    model: Model
    task: Task
    control: Control
    optim: Optim
    trainer: Trainer
    measure: Measure
    account: Account
    logger: Logger
    paths: Paths
    hardware: str | None = None
    """A named accelerator for which `account` predicts latencies."""
    origin: Origin | None = None
    """Where the run goes on from another's weights; `trainer.max_steps` then counts that one's too."""

    @property
    def first_step(self) -> int:
        """Steps that were done before this run: its first batch is the one that comes next."""
        return self.origin.steps if self.origin else 0

    @property
    def own_steps(self) -> int:
        """Steps that this run does itself."""
        return self.trainer.max_steps - self.first_step

    @property
    def layout(self) -> HeadLayout:
        return self.model.layout

    @property
    def shape(self) -> ModelShape:
        """The shape of the model that this run builds."""
        model, task = self.model, self.task
        assert model.d_ff is not None  # filled in by parse
        return ModelShape(
            layout=model.layout,
            n_layers=model.n_layers,
            d_ff=model.d_ff,
            mlp=model.mlp,
            position=model.position,
            norm=model.norm,
            tie_embeddings=model.tie_embeddings,
            inputs=task.inputs,
            n_inputs=model.vocab_size or task.n_inputs,
            n_outputs=model.vocab_size or task.n_outputs,
            max_len=model.max_len or task.seq_len,
            causal=task.causal,
            bias=model.bias,
            qk_norm=model.qk_norm,
            layers=model.layers,
        )

    @property
    def matching(self) -> Matching | None:
        """The control, where it is one that solves for something."""
        return self.control if isinstance(self.control, Matching) else None

    @property
    def matched(self) -> Matched | None:
        """What an iso control came to: target, achieved, residual; None for the other controls."""
        return matched(self)


def parse(raw: dict[str, Any]) -> Config:
    """Validate and resolve a composed configuration (plain containers, interpolations resolved).

    Raises LayoutError for a layout that cannot exist and RequestError for anything else wrong,
    each in one line with the key, the value and what would be valid.
    """
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        raise RequestError(_one_line(error)) from None
    config = resolved(config)
    _cross_check(config)
    return config


def parse_orders(raw: dict[str, Any]) -> Orders:
    """Validate what a composed configuration says of carrying out a study; RequestError if wrong."""
    try:
        orders = Orders.model_validate({key: raw.get(key) for key in Orders.model_fields})
    except ValidationError as error:
        raise RequestError(_one_line(error)) from None
    if orders.shard is not None:
        part, parts = map(int, orders.shard.split("/"))
        if part > parts:
            raise RequestError(f"shard={orders.shard}: valid: 1/{parts} to {parts}/{parts}")
    if isinstance(orders.protocol, Tuned):
        _each_once("protocol", orders.protocol, "lr_factors", "seeds")
    return orders


def _each_once(name: str, section: Section, *keys: str) -> None:
    for key in keys:
        values = getattr(section, key)
        if len(set(values)) < len(values):
            raise RequestError(f"{name}.{key}={values}: one stands twice; valid: each once")


def _cross_check(config: Config) -> None:
    """Every check that looks at more than one field, in one place."""
    model, task, trainer, optim = config.model, config.task, config.trainer, config.optim
    shape = config.shape  # which refuses sizes that do not go together
    _each_once("measure", config.measure, "contexts", "batch_sizes")
    lacks = torch_mha_lacks(shape) if model.backend == "torch_mha" else None
    if lacks:
        raise LayoutError(lacks)
    if model.heads is not None and config.matching is not None:
        raise CombinationError(
            f"model.heads={model.heads} with control={config.control.name}, which solves for layers "
            "that are all alike; valid: control=fixed_d_model"
        )
    if config.own_steps < 0:
        raise RequestError(
            f"trainer.max_steps={trainer.max_steps} with origin.steps={config.first_step}, which it "
            "counts; valid: at least as many"
        )
    if model.attention_dropout and model.backend == "flex":
        raise CombinationError(
            f"model.attention_dropout={model.attention_dropout} with model.backend=flex, which has "
            "none; valid: 0, or backend sdpa or eager"
        )
    masked = getattr(task, "document_mask", False)
    if masked and model.backend not in ("sdpa", "eager"):
        raise RequestError(
            f"task.document_mask=true with model.backend={model.backend}; "
            "valid: false, or backend sdpa or eager"
        )
    if model.vocab_size is not None and model.vocab_size < max(task.n_inputs, task.n_outputs):
        raise CombinationError(
            f"model.vocab_size={model.vocab_size}: task={task.name} has "
            f"{max(task.n_inputs, task.n_outputs)} symbols; valid: at least as many, or null"
        )
    if task.inputs == "vectors" and (model.vocab_size is not None or model.tie_embeddings):
        key, value = (
            ("tie_embeddings", "true") if model.tie_embeddings else ("vocab_size", model.vocab_size)
        )
        raise CombinationError(
            f"model.{key}={value}: task={task.name} has vectors for inputs, no symbols; "
            f"valid: {'false' if model.tie_embeddings else 'null'}"
        )
    if model.position == "learned" and model.max_len is not None and model.max_len < task.seq_len:
        raise CombinationError(
            f"model.max_len={model.max_len} is shorter than task.seq_len={task.seq_len}; "
            f"valid: at least {task.seq_len}, or null"
        )
    if optim.warmup_steps >= trainer.max_steps:
        raise CombinationError(
            f"optim.warmup_steps={optim.warmup_steps} leaves no step to train at "
            f"trainer.max_steps={trainer.max_steps}; valid: 0 to {trainer.max_steps - 1}"
        )
    if task.batch_size % (trainer.accumulate_grad_batches * trainer.devices):
        raise CombinationError(
            f"trainer.accumulate_grad_batches={trainer.accumulate_grad_batches} times "
            f"trainer.devices={trainer.devices} does not divide "
            f"task.batch_size={task.batch_size}; valid: a divisor of it"
        )
    if optim.grad_clip and trainer.strategy.startswith(("fsdp", "deepspeed")):
        raise CombinationError(
            f"trainer.strategy={trainer.strategy} shards the gradients, which are clipped whole; valid: "
            "trainer=ddp, or optim.grad_clip=0"
        )
    if trainer.devices > 1 and trainer.strategy == "auto":
        raise CombinationError(
            f"trainer.devices={trainer.devices} with trainer.strategy=auto; valid: "
            "trainer=ddp, or another strategy of Lightning's"
        )
    if model.tie_embeddings and task.n_inputs != task.n_outputs:
        raise CombinationError(
            "model.tie_embeddings=true: the task's inputs and outputs differ in size"
        )


def _one_line(error: ValidationError) -> str:
    """The first thing wrong, as `key=value: what would be valid`."""
    errors = error.errors()
    first = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    # A union's branch tag stands in the path (`task.moby_dick.seq_len`); users do not type it.
    path = [str(part) for part in first["loc"]]
    branch = path.pop(1) if len(path) > 2 and path[0] in UNIONS else None
    key, value = ".".join(path), first["input"]
    if first["type"] == "extra_forbidden":
        return unknown_key(key, value, branch)
    if first["type"] == TRUTH_VALUE:
        key = ".".join(filter(None, (key, first["ctx"]["key"])))
        return f"{key}={first['ctx']['value']}: {first['msg']}"
    if first["type"] == "union_tag_not_found":
        return f"{key}.name: missing"
    if first["type"] == "union_tag_invalid":
        tags = first["ctx"]["expected_tags"].replace("'", "")
        return f"{key}.name={first['ctx']['tag']}: valid: {tags}"
    if first["type"] == "missing":
        return f"{key}: missing"
    return f"{key}={value}: {first['msg'][0].lower()}{first['msg'][1:]}"


def unknown_key(key: str, value: object, branch: str | None = None) -> str:
    """The line for a key that nothing reads, with the known key closest to it."""
    section, _, leaf = key.rpartition(".")
    known = known_keys(section, branch)
    prefix = f"{section}." if section else ""
    close = difflib.get_close_matches(leaf, known, n=1)
    hint = f"; did you mean {prefix}{close[0]}?" if close else ""
    if leaf in known:
        hint = f"; only another choice of {section} has it"
    valid = f"; valid {'under ' + section if section else 'at the top'}: {', '.join(known)}"
    return f"{key}={value}: unknown key{hint}{valid if known else ''}"


UNIONS: dict[str, Any] = {"task": Task, "control": Control, "protocol": Protocol}
"""Sections that are one of several, told apart by their name."""


def known_keys(section: str, branch: str | None = None) -> list[str]:
    """The keys valid in a section, as the typed configuration has them; of a section that is one of
    several (a task, a control), those of the one named `branch`, or of all."""
    if not section:
        return sorted({*Config.model_fields, *Orders.model_fields})
    if section in UNIONS:
        branches = get_args(get_args(UNIONS[section])[0])
        return sorted({f for b in branches if branch in (None, _tag(b)) for f in b.model_fields})
    field = Config.model_fields.get(section)
    return sorted(getattr(field.annotation if field else None, "model_fields", {}))


def _tag(branch: type[Section]) -> str:
    """The name by which a section's branch is chosen."""
    return str(get_args(branch.model_fields["name"].annotation)[0])
