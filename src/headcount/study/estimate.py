"""What a plan will take, told before it runs: an order of magnitude, and what it rests on."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headcount.config import Config
from headcount.study.records import Record

NOMINAL_FLOPS = 20e9
"""FLOP/s of a worker where no completed run tells: a small model on one core of a current CPU."""

BYTES_PER_PARAMETER = 16
"""Weights, gradients and AdamW's two moments, four bytes each; activations come on top."""


@dataclass(frozen=True)
class Estimate:
    """tokens, flops, worker_seconds: of all runs together. Parameters and bytes: of one run."""

    runs: int
    tokens: int
    flops: int
    n_params_min: int
    n_params_max: int
    memory_bytes_at_least: int
    worker_seconds: float
    basis: str

    def line(self) -> str:
        low, high = _count(self.n_params_min), _count(self.n_params_max)
        return (
            f"{_count(self.tokens)} tokens, {low if low == high else f'{low} to {high}'} parameters, "
            f"at least {self.memory_bytes_at_least / 2**20:,.1f} MiB a run, "
            f"about {duration(self.worker_seconds)} of one worker ({self.basis})"
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def estimate(configs: Sequence[Config], completed: Sequence[Record]) -> Estimate:
    """What these runs will take, going by the speed of those completed."""
    params = [c.shape.n_params for c in configs] or [0]
    flops = sum(map(train_flops, configs))
    speed, basis = _speed(completed)
    return Estimate(
        runs=len(configs),
        tokens=sum(map(train_tokens, configs)),
        flops=flops,
        n_params_min=min(params),
        n_params_max=max(params),
        memory_bytes_at_least=BYTES_PER_PARAMETER * max(params),
        worker_seconds=flops / speed,
        basis=basis,
    )


def train_tokens(config: Config) -> int:
    return config.own_steps * config.task.batch_size * config.task.seq_len


def train_flops(config: Config) -> int:
    """FLOPs of a run's training: a backward pass takes two forwards."""
    sequences = config.own_steps * config.task.batch_size
    return 3 * sequences * config.shape.forward_flops(config.task.seq_len)


def _speed(completed: Sequence[Record]) -> tuple[float, str]:
    """FLOP/s of one worker, and where the figure comes from."""
    timed = [r for r in completed if r.training.seconds > 0]
    if not timed:
        return (
            NOMINAL_FLOPS,
            f"taking {NOMINAL_FLOPS / 1e9:.0f} GFLOP/s: no run of the study tells yet",
        )
    flops = sum(train_flops(Config.model_validate(r.config)) for r in timed)
    plural = "s" if len(timed) > 1 else ""
    return flops / sum(r.training.seconds for r in timed), f"by {len(timed)} completed run{plural}"


def _count(number: int) -> str:
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)


def duration(seconds: float) -> str:
    """A stretch of time in words, to one or two digits."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
