"""A run is what its scientific configuration says."""

import functools
import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import headcount
from headcount.config import Config

ID_LENGTH = 12
"""Hex characters of an id: 48 bits, no clash among a million runs to be expected."""

SCIENCE = {
    "model": None,
    "task": None,
    "control": None,
    "optim": None,
    "trainer": {"max_steps", "accumulate_grad_batches", "val_every_steps", "precision"},
    "seed": None,
    "origin": None,
}
"""What decides a result. Left out: paths, logger, launcher, devices, threads, the cost protocol."""

NOT_SCIENCE = {
    "model": {"attention", "kv_group_size"},  # the resolved numbers say the same
    "task": {"eval_batch_size"},  # evaluation does not depend on it
}


def run_id(config: Config) -> str:
    """Hash of the resolved model, layout, control, task, optimiser, trainer budget, precision and
    seed. Keys that are None are left out, so that an option added later, off by default, renames
    no run."""
    dumped = config.model_dump(mode="json")
    science: dict[str, Any] = {}
    for section, keys in SCIENCE.items():
        value = dumped[section]
        if value is None:
            continue
        if isinstance(value, dict):
            value = {
                k: v
                for k, v in value.items()
                if v is not None
                and (keys is None or k in keys)
                and k not in NOT_SCIENCE.get(section, ())
            }
        science[section] = value
    return short_hash(science)


def short_hash(value: Any) -> str:
    """ID_LENGTH hex characters of the SHA-256 of a value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:ID_LENGTH]


@functools.cache
def code_identity() -> dict[str, Any]:
    """The code that runs: version, a hash of the package's source, and the commit where it is known.

    Read once a process: a file edited later is not what this process runs.
    """
    package = Path(headcount.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode() + path.read_bytes())
    return {
        "version": headcount.__version__,
        "source_hash": digest.hexdigest()[:ID_LENGTH],
        "commit": _commit(package),
    }


def _commit(folder: Path) -> str | None:
    """The commit of a checkout that holds the package, with `-dirty` where files differ from it."""
    try:
        out = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return out.stdout.strip() or None if out.returncode == 0 else None
