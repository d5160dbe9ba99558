"""Peak memory by exact account of allocations, so that no figure depends on what ran before.

A process's high-water mark is the mark of whatever was largest so far, and resident memory is the
allocator's business. Counted here are the bytes that tensors hold: what was live at the start, plus
the running sum of allocations and releases, at its highest. CUDA keeps that account itself; on the
CPU the profiler's memory events are it.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from headcount.config import Config
from headcount.measure.inputs import DTYPES, random_inputs
from headcount.measure.training import TrainingStep
from headcount.model import KVCache, Transformer
from headcount.shape import ModelShape
from headcount.study.records import Memory


def measure_memory(config: Config, shape: ModelShape, device: torch.device) -> Memory:
    """Weights as trained, decode peak and training peak of a configuration, each on a new model.

    `shape` is the shape to decode with. The training peak is that of a whole step, micro-batches
    and AdamW's update included, once the optimiser's states exist.
    """
    dtype = DTYPES[config.measure.dtype]
    context, batch_size = max(config.measure.contexts), config.measure.batch_sizes[0]
    return Memory(
        weights_bytes=weights_bytes(config.shape, dtype),
        decode_peak_bytes=decode_peak_bytes(
            shape, dtype, device, context, batch_size, config.model.backend
        ),
        train_peak_bytes=train_peak_bytes(config, device),
        method=_METHOD[device.type],
    )


_METHOD = {
    "cpu": "CPU allocations counted by the profiler, from what was live before the step",
    "cuda": "CUDA's caching allocator, peak reset before the step",
    "mps": "the same step's allocations counted on the CPU: MPS keeps no peak",
}


def weights_bytes(shape: ModelShape, dtype: torch.dtype) -> int:
    """Bytes of a built model's parameters; a tied matrix counts once."""
    with torch.device("meta"):
        model = Transformer(shape).to(dtype)
    return sum(parameter.nbytes for parameter in model.parameters())


def decode_peak_bytes(
    shape: ModelShape,
    dtype: torch.dtype,
    device: torch.device,
    context: int,
    batch_size: int,
    backend: str = "sdpa",
) -> int:
    """Peak of one decode step that attends to `context` tokens: weights, cache and temporaries."""
    device = _accounted(device)
    model = Transformer(shape, backend=backend).to(device, dtype).eval()
    cache = KVCache(shape, batch_size, context, dtype, device)
    with torch.inference_mode():
        prompt = random_inputs(shape, batch_size, context, device, dtype)
        model(prompt, cache, last_only=True)  # also grows the rotation table, before the count
        cache.truncate(context - 1)
        token = prompt[:, -1:].clone()
        live = [*model.parameters(), *model.buffers(), *cache.tensors, token]
        del prompt
        return peak_bytes(lambda: model(token, cache, last_only=True), live, device)


def train_peak_bytes(config: Config, device: torch.device) -> int | None:
    """Peak of one whole training step at the configuration's batch, length and precision; None
    where the device has no room for it."""
    device = _accounted(device)
    try:
        step = TrainingStep(config, device)
        step()  # makes the optimiser's states, which every later step carries
        return peak_bytes(step, step.live(), device)
    except torch.OutOfMemoryError:
        return None  # what is served on this device need not be trained on it


def peak_bytes(step: Callable[[], object], live: Iterable[Tensor], device: torch.device) -> int:
    """Highest number of bytes held during `step`: `live`, which it starts with, and its own."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        others = torch.cuda.memory_allocated(device) - storage_bytes(live)
        step()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - others
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    assert profiler.profiler is not None
    kineto = profiler.profiler.kineto_results
    events = [e for e in kineto.events() if e.name() == "[memory]"]
    held = highest = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        highest = max(highest, held)
    return storage_bytes(live) + highest


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes behind the tensors, each storage once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def _accounted(device: torch.device) -> torch.device:
    """Where the allocations of a step are counted: MPS keeps no account of its own."""
    return torch.device("cpu") if device.type == "mps" else device
