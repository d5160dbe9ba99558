"""Predicted latency on hardware that is not at hand, from its data sheet. No torch.

A prediction is a roofline bound: the least time that the arithmetic and the bytes allow. Real steps
take longer; every key says `predicted`.
"""

from dataclasses import dataclass
from typing import Any

from headcount.errors import RequestError, did_you_mean
from headcount.measure.roofline import Ceilings, decode_work, prefill_work
from headcount.shape import ModelShape

DRAM = 1
"""A working set that no cache is assumed to hold."""


@dataclass(frozen=True)
class Hardware:
    """Peak of dense 16-bit products and memory bandwidth, as the vendor states them."""

    tflops: float
    tb_per_s: float
    dtypes: tuple[str, ...] = ("bf16", "fp16")

    @property
    def ceilings(self) -> Ceilings:
        return Ceilings(self.tflops * 1e12, {DRAM: self.tb_per_s * 1e12})


# Vendor data sheets; dense rates, no sparsity.
HARDWARE = {
    "T4": Hardware(65, 0.32, ("fp16",)),
    "L4": Hardware(121, 0.30),
    "A10G": Hardware(70, 0.60),
    "A100-40": Hardware(312, 1.555),
    "A100-80": Hardware(312, 2.039),
    "H100-SXM": Hardware(989, 3.35),
    "H200": Hardware(989, 4.8),
    "B200": Hardware(2250, 8.0),
    "RTX-4090": Hardware(165, 1.008),
    "MI300X": Hardware(1307, 5.3),
}


def find(name: str) -> tuple[str, Hardware]:
    """The hardware of that name, whatever its case; RequestError with the valid names otherwise."""
    by_lower = {known.lower(): known for known in HARDWARE}
    known = by_lower.get(name.lower().replace(" ", "-"))
    if known is None:
        hint = did_you_mean(name.upper(), HARDWARE)
        raise RequestError(f"hardware={name}: unknown{hint}; valid: {', '.join(HARDWARE)}")
    return known, HARDWARE[known]


def predicted(
    shape: ModelShape, dtype: str, context: int, batch_size: int, hardware: str
) -> dict[str, Any]:
    """Predicted prefill and decode latency as flat keys, all of them below `predicted/`.

    context: tokens of the prompt, and those that a decode step attends to. Raises RequestError for
    an unknown name, and for a dtype whose peak the data sheet does not give.
    """
    name, device = find(hardware)
    if dtype not in device.dtypes:
        raise RequestError(
            f"account.dtype={dtype} with hardware={name}: no peak on its data sheet; "
            f"valid: {', '.join(device.dtypes)}"
        )
    prefill = device.ceilings.bound(prefill_work(shape, context, batch_size, dtype))
    decode = device.ceilings.bound(decode_work(shape, context, batch_size, dtype))
    return {
        "predicted/hardware": name,
        "predicted/dtype": dtype,
        "predicted/context": context,
        "predicted/batch_size": batch_size,
        "predicted/prefill_ms": prefill.ms,
        "predicted/prefill_bound_by": prefill.by,
        "predicted/decode_ms_per_token": decode.ms,
        "predicted/decode_bound_by": decode.by,
        "predicted/decode_tokens_per_s": 1e3 * batch_size / decode.ms,
    }
