"""The typed configuration: what a request may say, and the checks that cross its fields.

Hydra composes `conf/` and the overrides; `parse` turns the result into a `Config` or raises a
RequestError of one line. Nothing here imports torch, so a wrong request fails in a moment.
"""

import difflib
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from headcount.errors import CombinationError, LayoutError, RequestError
from headcount.layout import HeadLayout
from headcount.shape import DType, ModelShape


class Section(BaseModel):
    """A part of the configuration: unknown keys are refused, values are not coerced loosely."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
PositiveInt = Annotated[int, Field(ge=1)]


class Model(Section):
    """The model; `None` is filled in by `parse`: d_head = d_model/n_heads, d_ff by the MLP's rule."""

    attention: Literal["mha", "gqa", "mqa"] = "mha"
    d_model: int
    n_layers: PositiveInt
    n_heads: int
    n_kv_heads: int | None = None
    kv_group_size: int | None = None
    d_head: int | None = None
    d_ff: PositiveInt | None = None
    mlp: Literal["swiglu", "gelu", "none"]
    position: Literal["rope", "learned", "none"]
    norm: Literal["rmsnorm", "layernorm"]
    dropout: float = Field(ge=0, lt=1)
    tie_embeddings: bool
    backend: Literal["sdpa"]

    @property
    def layout(self) -> HeadLayout:
        return HeadLayout.of(self.d_model, self.n_heads, self.n_kv_heads, self.d_head)


class MobyDick(Section):
    """Next-byte prediction on the novel that ships with the package."""

    name: Literal["moby_dick"]
    batch_size: PositiveInt
    seq_len: Annotated[int, Field(ge=2, le=4096)]
    eval_batch_size: PositiveInt
    eval_tokens: PositiveInt
    """Bytes of the validation split scored at each validation; the test split is scored whole."""

    n_inputs: ClassVar[int] = 256
    n_outputs: ClassVar[int] = 256
    causal: ClassVar[bool] = True


class EndpointSelection(Section):
    """Given (u, v, i, #), name the i-th endpoint of the edge (u, v) of the complete digraph."""

    name: Literal["endpoint_selection"]
    batch_size: PositiveInt
    seq_len: Literal[4]
    eval_batch_size: PositiveInt
    n_vertices: Annotated[int, Field(ge=3, le=512)]

    @property
    def n_inputs(self) -> int:
        """Vertices, the two indices, and the read-out mark."""
        return self.n_vertices + 3

    @property
    def n_outputs(self) -> int:
        return self.n_inputs

    causal: ClassVar[bool] = True


Task = Annotated[MobyDick | EndpointSelection, Field(discriminator="name")]


class Control(Section):
    """What happens to the parameters that a layout frees or costs."""

    name: Literal["fixed_d_model"]


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


class Paths(Section):
    results: str


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
            inputs="tokens",
            n_inputs=task.n_inputs,
            n_outputs=task.n_outputs,
            max_len=task.seq_len,
            causal=task.causal,
        )


def parse(raw: dict[str, Any]) -> Config:
    """Validate and resolve a composed configuration (plain containers, interpolations resolved).

    Raises LayoutError for a layout that cannot exist and RequestError for anything else wrong,
    each in one line with the key, the value and what would be valid.
    """
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        raise RequestError(_one_line(error)) from None
    config = config.model_copy(update={"model": _resolved(config.model)})
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
    return orders


def _resolved(model: Model) -> Model:
    """Fill in n_kv_heads, d_head and d_ff. Afterwards only numbers describe the layout."""
    n_kv_heads = _n_kv_heads(model)
    layout = HeadLayout.of(model.d_model, model.n_heads, n_kv_heads, model.d_head)
    # 8/3 and 4 times d_model give both MLPs the same parameters (Shazeer 2020); rounded up to 8.
    rule = {"swiglu": -(-8 * layout.d_model // 24) * 8, "gelu": 4 * layout.d_model, "none": 1}
    update = {
        "n_kv_heads": layout.n_kv_heads,
        "kv_group_size": layout.group_size,
        "d_head": layout.d_head,
        "d_ff": model.d_ff if model.d_ff and model.mlp != "none" else rule[model.mlp],
    }
    return model.model_copy(update=update)


def _n_kv_heads(model: Model) -> int | None:
    """KV heads by the request: explicit, by group size, or by the kind of attention."""
    n_heads, n_kv_heads, group = model.n_heads, model.n_kv_heads, model.kv_group_size
    if group is not None:
        if group < 1 or n_heads % group:
            raise LayoutError(
                f"model.kv_group_size={group} does not divide model.n_heads={n_heads}; "
                "valid: a divisor of n_heads"
            )
        if n_kv_heads is not None and n_kv_heads * group != n_heads:
            raise LayoutError(
                f"model.n_kv_heads={n_kv_heads} contradicts model.kv_group_size={group} at "
                f"model.n_heads={n_heads}; give one of them, or n_kv_heads={n_heads // group}"
            )
        n_kv_heads = n_heads // group
    if model.attention == "mqa":
        if n_kv_heads not in (None, 1):
            raise LayoutError(
                f"model.n_kv_heads={n_kv_heads} with attention=mqa: valid: 1 (or attention=gqa)"
            )
        return 1
    if model.attention == "gqa" and n_kv_heads is None:
        raise CombinationError("attention=gqa: give model.kv_group_size or model.n_kv_heads")
    return n_kv_heads


def _cross_check(config: Config) -> None:
    """Every check that looks at more than one field, in one place."""
    model, task, trainer, optim = config.model, config.task, config.trainer, config.optim
    layout = model.layout
    if model.position == "rope" and layout.d_head % 2:
        raise LayoutError(
            f"model.d_head={layout.d_head} (d_model {layout.d_model}, n_heads {layout.n_heads}): "
            "model.position=rope needs an even d_head; "
            f"nearest valid d_head: {layout.d_head - 1 or 2} or {layout.d_head + 1}"
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
    task = path.pop(1) if len(path) > 2 and path[0] == "task" else None
    key, value = ".".join(path), first["input"]
    if first["type"] == "extra_forbidden":
        return unknown_key(key, value, task)
    if first["type"] == "missing":
        return f"{key}: missing"
    return f"{key}={value}: {first['msg'][0].lower()}{first['msg'][1:]}"


def unknown_key(key: str, value: object, task: str | None = None) -> str:
    """The line for a key that nothing reads, with the known key closest to it."""
    section, _, leaf = key.rpartition(".")
    known = known_keys(section, task)
    prefix = f"{section}." if section else ""
    close = difflib.get_close_matches(leaf, known, n=1)
    hint = f"; did you mean {prefix}{close[0]}?" if close else ""
    valid = f"; valid {'under ' + section if section else 'at the top'}: {', '.join(known)}"
    return f"{key}={value}: unknown key{hint}{valid if known else ''}"


def known_keys(section: str, task: str | None = None) -> list[str]:
    """The keys valid in a section, as the typed configuration has them; for the section `task`,
    those of the task of that name, or of all."""
    if not section:
        return sorted({*Config.model_fields, *Orders.model_fields})
    if section == "task":
        tasks = get_args(get_args(Task)[0])
        return sorted({f for t in tasks if task in (None, _tag(t)) for f in t.model_fields})
    field = Config.model_fields.get(section)
    return sorted(getattr(field.annotation if field else None, "model_fields", {}))


def _tag(task: type[Section]) -> str:
    """The name by which a task's section is chosen."""
    return str(get_args(task.model_fields["name"].annotation)[0])
