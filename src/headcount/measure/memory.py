"""Peak memory by exact account of allocations, so that no figure depends on what ran before.

A process's high-water mark is the mark of whatever was largest so far, and resident memory is the
allocator's business. Counted here are the bytes that tensors hold: what was live at the start, plus
the running sum of allocations and releases, at its highest. CUDA keeps that account itself; on the
CPU the profiler's memory events are it.
"""

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from headcount.config import Config
from headcount.model import KVCache, Transformer
from headcount.shape import ModelShape
from headcount.study.records import Memory

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
TRUE_DTYPES = {"bf16-true": torch.bfloat16}
AUTOCAST_DTYPES = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


def measure_memory(config: Config, shape: ModelShape, device: torch.device) -> Memory:
    """Weights as trained, decode peak and training peak of a configuration, each on a new model.

    `shape` is the shape to decode with. The training peak is that of a whole step, micro-batches
    and AdamW's update included, once the optimiser's states exist.
    """
    dtype = DTYPES[config.measure.dtype]
    context, batch_size = max(config.measure.contexts), config.measure.batch_sizes[0]
    return Memory(
        weights_bytes=weights_bytes(config.shape, dtype),
        decode_peak_bytes=decode_peak_bytes(shape, dtype, device, context, batch_size),
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
    shape: ModelShape, dtype: torch.dtype, device: torch.device, context: int, batch_size: int
) -> int:
    """Peak of one decode step that attends to `context` tokens: weights, cache and temporaries."""
    device = _accounted(device)
    model = Transformer(shape).to(device, dtype).eval()
    cache = KVCache(shape, batch_size, context, dtype, device)
    with torch.inference_mode():
        prompt = random_inputs(shape, batch_size, context, device, dtype)
        model(prompt, cache, last_only=True)  # also grows the rotation table, before the count
        cache.truncate(context - 1)
        token = prompt[:, -1:].clone()
        live = [*model.parameters(), *model.buffers(), *cache.tensors, token]
        del prompt
        return peak_bytes(lambda: model(token, cache, last_only=True), live, device)


def train_peak_bytes(config: Config, device: torch.device) -> int:
    """Peak of one whole training step at the configuration's batch, length and precision."""
    device = _accounted(device)
    shape, trainer, precision = config.shape, config.trainer, config.trainer.precision
    dtype = TRUE_DTYPES.get(precision, torch.float32)
    model = Transformer(
        shape, config.model.dropout, 0, config.model.attention_dropout, config.model.backend
    )
    model = model.to(device, dtype).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=config.optim.lr)
    parts = trainer.accumulate_grad_batches
    size = (config.task.batch_size // parts, config.task.seq_len)
    inputs = random_inputs(shape, *size, device, dtype)
    targets = torch.randint(shape.n_outputs, (size[0] * size[1],), device=device)
    autocast = AUTOCAST_DTYPES.get(precision)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        for _ in range(parts):
            with torch.autocast(device.type, autocast, enabled=autocast is not None):
                loss = F.cross_entropy(model(inputs).flatten(0, 1), targets)
            (loss / parts).backward()
        optimiser.step()

    step()  # makes the optimiser's states, which every later step carries
    optimiser.zero_grad(set_to_none=True)
    states = [t for state in optimiser.state.values() for t in state.values()]
    live = [*model.parameters(), *model.buffers(), *states, inputs, targets]
    return peak_bytes(step, live, device)


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


def random_inputs(
    shape: ModelShape, batch_size: int, n_tokens: int, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """(B, T) tokens or (B, T, n_inputs) vectors of no meaning; costs depend on no value."""
    generator = torch.Generator().manual_seed(0)
    if shape.inputs == "tokens":
        return torch.randint(shape.n_inputs, (batch_size, n_tokens), generator=generator).to(device)
    size = (batch_size, n_tokens, shape.n_inputs)
    return torch.randn(size, generator=generator).to(device, dtype)


def _accounted(device: torch.device) -> torch.device:
    """Where the allocations of a step are counted: MPS keeps no account of its own."""
    return torch.device("cpu") if device.type == "mps" else device
