"""Controls: what happens to the parameters, FLOPs or cache that a layout frees or costs.

A control holds one quantity of a model at that of a reference by turning one dial. The ranking of
layouts can flip with the control (Zadouri 2025), so a study names its own. Torch-free and exact:
every quantity is linear in its dial, so the solution is the nearest value the dial can take.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

from headcount.errors import LayoutError
from headcount.layout import HeadLayout, divisors
from headcount.shape import ModelShape

Quantity = Literal["params", "flops", "kv_bytes"]
Dial = Literal["ffn", "heads", "depth", "kv_heads", "d_head", "latent"]

UNIT: dict[Quantity, str] = {
    "params": "parameters",
    "flops": "FLOPs of a forward over task.seq_len",
    "kv_bytes": "KV-cache bytes a token at 2 bytes",
}
KEY: dict[Dial, str] = {
    "ffn": "d_ff",
    "heads": "n_heads",
    "depth": "n_layers",
    "kv_heads": "n_kv_heads",
    "d_head": "d_head",
    "latent": "d_latent",
}
"""The key under `model` that each dial turns."""


@dataclass(frozen=True)
class Matched:
    """A shape brought to a target: `value` is what `model.<key>` came to."""

    shape: ModelShape
    key: str
    value: int
    target: int
    achieved: int

    @property
    def residual(self) -> float:
        """(achieved − target) / target."""
        return (self.achieved - self.target) / self.target

    def figures(self) -> dict[str, str | int | float]:
        """Flat keys for `account`."""
        return {
            "control/key": f"model.{self.key}",
            "control/value": self.value,
            "control/target": self.target,
            "control/achieved": self.achieved,
            "control/residual": self.residual,
        }


def match(
    shape: ModelShape,
    reference: ModelShape,
    quantity: Quantity,
    by: Dial,
    *,
    seq_len: int,
    multiple: int = 1,
    tolerance: float = 0.0,
) -> Matched:
    """Turn the dial `by` of `shape` until `quantity` is nearest to the reference's.

    d_ff is rounded to a multiple of `multiple`; heads stay divisible and rotary widths even.
    Raises LayoutError, in one line, where the nearest lies further off than `tolerance`
    (a fraction of the target) or the dial does nothing to the quantity.
    """
    amount = measure(quantity, seq_len)
    target = amount(reference)
    key = KEY[by]
    settings = list(_settings(shape, by, multiple, amount, target))
    if not settings:
        raise LayoutError(f"control by={by}: model.{key} does nothing to {UNIT[quantity]} here")
    value, best = min(settings, key=lambda s: (abs(amount(s[1]) - target), s[0]))
    matched = Matched(best, key, value, target, amount(best))
    if abs(matched.residual) > tolerance:
        raise LayoutError(
            f"control.by={by}: the nearest model.{key}={value} comes to {matched.achieved:,} "
            f"{UNIT[quantity]}, {matched.residual:+.2%} off the reference's {target:,}; "
            f"valid: control.tolerance of at least {abs(matched.residual):.4f}, or another control.by"
        )
    return matched


def measure(quantity: Quantity, seq_len: int) -> Callable[[ModelShape], int]:
    """The function that counts a quantity of a shape."""
    return {
        "params": lambda shape: shape.n_params,
        "flops": lambda shape: shape.forward_flops(seq_len),
        "kv_bytes": lambda shape: shape.kv_bytes_per_token("bf16"),
    }[quantity]


def _settings(
    shape: ModelShape,
    by: Dial,
    multiple: int,
    amount: Callable[[ModelShape], int],
    target: int,
) -> Iterable[tuple[int, ModelShape]]:
    """The dial's settings next to the target, each with its shape."""
    if by == "kv_heads":  # no straight line: only divisors of n_heads
        for n in divisors(shape.layout.n_heads):
            yield n, turned(shape, by, n)
        return
    step = _step(shape, by, multiple)
    low, high = amount(turned(shape, by, step)), amount(turned(shape, by, 2 * step))
    if low == high:
        return
    exact = 1 + Fraction(target - low, high - low)  # in steps
    for n in {max(1, exact.__floor__()), max(1, exact.__ceil__())}:
        yield n * step, turned(shape, by, n * step)


def _step(shape: ModelShape, by: Dial, multiple: int) -> int:
    """The finest turn of a dial."""
    if by == "ffn":
        return multiple
    if by == "heads" and not shape.layout.d_latent:
        return shape.layout.n_kv_heads  # held; the group grows
    return 2 if by == "d_head" and shape.position == "rope" and not shape.layout.d_latent else 1


def turned(shape: ModelShape, by: Dial, value: int) -> ModelShape:
    """The shape with one dial at a value; d_head stays as it is when n_heads turns."""
    layout = shape.layout
    if by == "ffn":
        return replace(shape, d_ff=value)
    if by == "depth":
        return replace(shape, n_layers=value)
    if by == "heads":
        n_kv_heads = value if layout.d_latent else layout.n_kv_heads
        return replace(shape, layout=replace(layout, n_heads=value, n_kv_heads=n_kv_heads))
    turned: dict[str, Any] = {KEY[by]: value}
    return replace(shape, layout=replace(layout, **turned))


def matched_d_ff(
    d_ff: int,
    reference: HeadLayout,
    layout: HeadLayout,
    *,
    mlp_matrices: int = 2,
    attention_per_mlp: Fraction | int = 1,
) -> Fraction:
    """The d_ff at which an MLP takes up exactly the weights that `layout` frees against `reference`.

    For architectures beyond ModelShape: `attention_per_mlp` attention blocks stand for each MLP of
    `mlp_matrices` matrices (an encoder-decoder with as many layers of each has 3/2).
    """
    freed = attention_per_mlp * (reference.n_params - layout.n_params)
    return d_ff + Fraction(freed, mlp_matrices * layout.d_model)
