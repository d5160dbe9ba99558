"""Dtypes by name, inputs of no meaning, and the room that a device has for them."""

import psutil
import torch
from torch import Tensor

from headcount.shape import ModelShape

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def random_inputs(
    shape: ModelShape, batch_size: int, n_tokens: int, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """(B, T) tokens or (B, T, n_inputs) vectors, the same each time; costs depend on no value."""
    generator = torch.Generator().manual_seed(0)
    if shape.inputs == "tokens":
        size = (batch_size, n_tokens)
        return torch.randint(shape.n_inputs, size, generator=generator).to(device)
    values = torch.randn((batch_size, n_tokens, shape.n_inputs), generator=generator)
    return values.to(device, dtype)


def free_bytes(device: torch.device) -> int:
    """Bytes that the device could still give; MPS shares the host's."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return int(psutil.virtual_memory().available)
