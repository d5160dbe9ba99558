"""A real SLURM of one node on this machine, without systemd, for as long as a test needs it."""

import contextlib
import os
import platform
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

NEEDED = ("slurmctld", "slurmd", "munged", "sbatch", "setpriv")


def missing() -> str | None:
    """Why no SLURM can be started here, or None."""
    if os.geteuid() != 0:
        return "a SLURM of one's own needs root"
    absent = [name for name in NEEDED if shutil.which(name) is None]
    return (
        f"not installed: {', '.join(absent)} (apt-get install slurm-wlm munge)" if absent else None
    )


def job_of(pid: int) -> str:
    """The job of an array that a process on this host belongs to, as SLURM's commands take it."""
    lines = Path(f"/proc/{pid}/environ").read_text().split("\0")
    given = dict(line.partition("=")[::2] for line in lines)
    return f"{given['SLURM_ARRAY_JOB_ID']}_{given['SLURM_ARRAY_TASK_ID']}"


@contextlib.contextmanager
def cluster() -> Iterator[dict[str, str]]:
    """Run a cluster; yields what its clients need in their environment."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        os.chmod(folder, 0o755)  # munged runs as a user of its own
        with _cluster(Path(folder)) as conf:
            yield {"SLURM_CONF": str(conf)}


@contextlib.contextmanager
def _cluster(folder: Path) -> Iterator[Path]:
    munge = folder / "munge"
    munge.mkdir()
    (munge / "key").write_bytes(os.urandom(128))
    (munge / "key").chmod(0o600)
    for path in (munge, munge / "key"):
        shutil.chown(path, "munge", "munge")
    conf = folder / "slurm.conf"
    conf.write_text(_conf(folder, platform.node().split(".")[0]))
    environment = {**os.environ, "SLURM_CONF": str(conf)}
    daemons = [
        _start(
            folder, environment,
            "setpriv", "--reuid", "munge", "--regid", "munge", "--clear-groups", "munged",
            "--foreground", "--force", f"--key-file={munge}/key", f"--socket={munge}/socket",
            f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed",
        )
    ]  # fmt: skip
    try:
        _wait_for(lambda: (munge / "socket").exists())
        daemons.append(_start(folder, environment, "slurmctld", "-D", "-c", "-f", str(conf)))
        daemons.append(_start(folder, environment, "slurmd", "-D", "-f", str(conf)))
        _wait_for(lambda: _state(environment) == "idle")
        yield conf
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(30)


def _start(folder: Path, environment: dict[str, str], *command: str) -> subprocess.Popen:
    name = "munged" if command[0] == "setpriv" else command[0]
    with open(folder / f"{name}.out", "w") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment)


def _state(environment: dict[str, str]) -> str:
    done = subprocess.run(
        ["sinfo", "-h", "-o", "%t"], capture_output=True, text=True, env=environment
    )
    return done.stdout.strip()


def _wait_for(condition, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "SLURM did not come up"
        time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _conf(folder: Path, host: str) -> str:
    for name in ("state", "spool"):
        (folder / name).mkdir()
    return f"""
ClusterName=headcount
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort={_free_port()}
SlurmdPort={_free_port()}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs={os.cpu_count()} RealMemory=3000
PartitionName=debug Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""
