"""W&B's client, set up to be quiet, to ask nothing at the terminal and to keep secrets out."""

import os
import sys
from typing import Any

INIT_SECONDS, FINISH_SECONDS = 20.0, 60.0
"""How long a server that does not answer may hold up a run, at its start and at its end;
WANDB_INIT_TIMEOUT and WANDB_FINISH_TIMEOUT say otherwise."""


def settings(live: bool) -> Any:
    """Settings of a run. `live`: it runs here and now, so this machine's load belongs to it.

    W&B would store the command line, the repository's address and the list of packages; a secret
    may stand in each of them, and what a run needs of them stands in its record.
    """
    import wandb

    return wandb.Settings(
        silent=True,
        console="off",
        init_timeout=float(os.environ.get("WANDB_INIT_TIMEOUT", INIT_SECONDS)),
        finish_timeout=float(os.environ.get("WANDB_FINISH_TIMEOUT", FINISH_SECONDS)),
        finish_timeout_raises=True,
        disable_git=True,
        disable_code=True,
        x_disable_meta=True,
        x_save_requirements=False,
        x_disable_stats=not live,
    )


def server() -> str:
    """The address of the W&B server that this process talks to; the client says nothing from now
    on, but for the lines that we tell."""
    import wandb

    setup = wandb.setup(wandb.Settings(silent=True))
    wandb.termsetup(wandb.Settings(silent=True), None)  # for a client that was set up before
    return str(setup.settings.base_url)


def restart() -> None:
    """End W&B's process: it keeps the id of a run that it failed to start."""
    import wandb

    wandb.teardown()


def require_key() -> None:
    """Find an API key where W&B keeps it; PermissionError where there is none."""
    from wandb.sdk.lib import wbauth

    if wbauth.authenticate_session(host=server(), source="headcount", prompt=False) is None:
        raise PermissionError("no API key: set WANDB_API_KEY or run `wandb login`")


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def tell(message: str) -> None:
    """One line for the user, who may not be looking at a log."""
    print(f"headcount: W&B: {message}", file=sys.stderr, flush=True)
