"""A run over several devices: this process is rank 0, and starts the others.

Lightning would start them by running the command again, which under a sweep is another command. The
others train and write nothing. They end with rank 0, however it ends.

    python -m headcount.training.ranks      (a request on stdin, which stays open)
"""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headcount.config import Config

GRACE_SECONDS = 20.0
"""How long the others may take to end once rank 0 has."""


@contextmanager
def other_ranks(config: Config, folder: Path) -> Iterator[None]:
    """Within the block, ranks 1 … devices − 1 train this run as well; none for one device."""
    if config.trainer.devices == 1:
        yield
        return
    import torch.distributed

    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "NODE_RANK": "0"}
    request = json.dumps({"config": config.model_dump(mode="json"), "folder": str(folder)})
    others = [
        _start(
            os.environ | meeting | {"LOCAL_RANK": str(rank)}, request, folder / f"rank{rank}.log"
        )
        for rank in range(1, config.trainer.devices)
    ]
    before = dict(os.environ)
    os.environ.update(meeting | {"LOCAL_RANK": "0"})
    try:
        yield
        for other in others:
            other.wait(GRACE_SECONDS)
    finally:
        for name in (*meeting, "LOCAL_RANK", "WORLD_SIZE"):
            os.environ.pop(name, None)
            if name in before:
                os.environ[name] = before[name]
        for other in others:
            other.kill()
            other.wait()
        if torch.distributed.is_initialized():  # the next run meets elsewhere
            torch.distributed.destroy_process_group()


def _start(environment: dict[str, str], request: str, log: Path) -> subprocess.Popen[str]:
    with open(log, "w") as output:
        other = subprocess.Popen(
            [sys.executable, "-m", "headcount.training.ranks"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=environment,
            text=True,
        )
    assert other.stdin is not None
    other.stdin.write(request + "\n")
    other.stdin.flush()
    return other


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """Be one of the others."""
    from headcount.tasks import build_task
    from headcount.training.fit import fit
    from headcount.training.progress import DivergedError, InterruptedRunError, RunProgress

    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_rank_zero, daemon=True).start()
    config = Config.model_validate(request["config"])
    progress = RunProgress(
        Path(request["folder"]), config.trainer.val_every_steps, lambda: None, lambda _: None
    )
    try:
        fit(config, build_task(config), progress, [])
    except (DivergedError, InterruptedRunError) as error:
        sys.exit(str(error))  # rank 0 says so in the record


def _end_with_rank_zero() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main()
