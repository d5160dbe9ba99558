"""Keeping secrets out of what is written down."""

import os
import re
import shlex
from collections.abc import Sequence

HIDDEN = "***"
_SECRET = re.compile(r"(key|token|secret|passwd|password|credentials?)(?=[._]|$)", re.IGNORECASE)
_SHORTEST = 6
"""Shorter values of environment variables are not looked for: they would be found in plain words."""


def command_line(arguments: Sequence[str]) -> str:
    """A command as it can be typed again, without what may be secret: the values of overrides that
    set environment variables or are named like a secret, and those of variables named like one."""
    values = [
        value for name, value in os.environ.items() if _secret(name) and len(value) >= _SHORTEST
    ]
    return shlex.join(_plain(argument, values) for argument in arguments)


def _plain(argument: str, values: Sequence[str]) -> str:
    key, equals, _ = argument.partition("=")
    if equals and (_secret(key) or "hydra.job.env_set" in key):
        return f"{key}={HIDDEN}"
    for value in values:
        argument = argument.replace(value, HIDDEN)
    return argument


def _secret(name: str) -> bool:
    return bool(_SECRET.search(name))
