"""Every random draw is a function of the run's seed, a named stream and a place in it.

So weights, data and dropout never disturb one another, a validation pass shifts nothing, and a run
taken up at step k draws what the uninterrupted run drew.
"""

import hashlib

import torch


def derive(seed: int, *path: str | int) -> int:
    """A 63-bit seed for the stream at `path`, such as ("data", step)."""
    text = "/".join(map(str, (seed, *path)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *path: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator of its own for the stream at `path`."""
    return torch.Generator(device).manual_seed(derive(seed, *path))
