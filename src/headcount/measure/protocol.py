"""What identifies a cost record, and the fixed parts of the measuring protocol. No torch here.

A cost depends on the model's shape, the dtype, the backend, the device and how it was measured; on
no seed, no weight and no path. So it is measured once and shared by every run that differs from
another in nothing else.
"""

import dataclasses
import hashlib
import json
import os
import platform
import sys
from functools import cache
from pathlib import Path
from typing import Any

from headcount.config import Config, Measure
from headcount.errors import RequestError
from headcount.shape import ModelShape

VERSION = 2
"""Raised whenever figures of a new version must not be compared with those of an old one."""

MIN_POINT_MS = 40.0
"""A point is sampled `measure.repeats` times, and on until its timed samples last this long."""

MIN_WARMUP_MS = 20.0
"""A point is warmed up by `measure.warmup` calls and at least this long."""

_ACCELERATOR_NODES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Device files of CUDA, of ROCm and of CUDA under WSL; without any, torch need not be asked."""


def cost_id(config: Config) -> str:
    """The name of the cost record that belongs to this configuration on this device: 12 hex digits.

    Configurations whose layouts are numerically equal share it, whatever their `attention` is
    called. Imports torch only where the host may have an accelerator.
    """
    text = json.dumps(identity(config), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def identity(config: Config) -> dict[str, Any]:
    """Everything that a cost record depends on, as plain values."""
    measure, model, trainer, task = config.measure, config.model, config.trainer, config.task
    return {
        "version": VERSION,
        "shape": measured_shape(config).as_dict(),
        "dtype": measure.dtype,
        "backend": model.backend,
        "device": device_name(device_kind(measure.device)),
        "protocol": {
            "contexts": measure.contexts,
            "batch_sizes": measure.batch_sizes,
            "repeats": measure.repeats,
            "warmup": measure.warmup,
            "threads": measure.threads,
        },
        # What one training step's peak memory depends on.
        "training": {
            "batch_size": task.batch_size,
            "seq_len": task.seq_len,
            "accumulate_grad_batches": trainer.accumulate_grad_batches,
            "precision": trainer.precision,
            "dropout": model.dropout,
            "attention_dropout": model.attention_dropout,
        },
    }


def measured_shape(config: Config) -> ModelShape:
    """The shape that is timed: as trained, but learned positions reach the largest context."""
    shape, longest = config.shape, max(config.measure.contexts)
    if shape.position == "learned" and longest > shape.max_len:
        return dataclasses.replace(shape, max_len=longest)
    return shape


def headline(measure: Measure) -> tuple[int, int]:
    """The context and batch size whose figures stand for the layout: the largest context, and the
    batch size named first."""
    return max(measure.contexts), measure.batch_sizes[0]


@cache
def device_kind(requested: str) -> str:
    """The device that `measure.device` means on this host: cpu, cuda or mps."""
    if requested != "auto":
        return requested
    if sys.platform != "darwin" and not any(os.path.exists(node) for node in _ACCELERATOR_NODES):
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


@cache
def device_name(kind: str) -> str:
    """The device's name as the system gives it; RequestError where this host has no such device."""
    if kind == "cpu":
        return _cpu_model()
    import torch

    if kind == "cuda" and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    if kind == "mps" and torch.backends.mps.is_available():
        return f"{_cpu_model()} (mps)"
    raise RequestError(f"measure.device={kind}: this host has none; valid: auto, cpu")


def _cpu_model() -> str:
    """The processor's model name, or its architecture where the system tells no more."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
