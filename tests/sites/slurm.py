"""A Slurm of one host, from Debian's packages, for the time of a test."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun")
MUNGE = ("/etc/munge", "/var/log/munge", "/var/lib/munge", "/run/munge")


def why_not() -> str:
    """Return why no Slurm can run here, or ""."""
    missing = [name for name in PROGRAMS if not shutil.which(name, path="/usr/sbin:/usr/bin")]
    if missing:
        return f"no {missing[0]}: apt-get install slurmctld slurmd slurm-client munge"
    return "" if os.getuid() == 0 else "needs root"


@contextmanager
def slurm(folder: Path) -> Iterator[Path]:
    """Run the daemons; yield the configuration file (``SLURM_CONF``)."""
    configuration = folder / "slurm.conf"
    configuration.write_text(text(folder))
    environ = {**os.environ, "SLURM_CONF": str(configuration), "PATH": "/usr/sbin:/usr/bin:/bin"}
    own_munge()
    daemons = [
        subprocess.Popen(words, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for words in (["munged", "--force", "-F"], ["slurmctld", "-D"], ["slurmd", "-D"])
    ]
    try:
        wait_until_idle(environ)
        yield configuration
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(20)


def own_munge() -> None:
    """Give munge's folders to root, who runs it here, and make a key."""
    for name in MUNGE:
        path = Path(name)
        path.mkdir(parents=True, exist_ok=True)
        os.chown(path, 0, 0)
        path.chmod(0o755 if name == "/run/munge" else 0o700)
    key = Path("/etc/munge/munge.key")
    key.unlink(missing_ok=True)
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)


def text(folder: Path) -> str:
    host = socket.gethostname()
    lines = {
        "ClusterName": "one",
        "SlurmctldHost": host,
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "StateSaveLocation": folder,
        "SlurmdSpoolDir": folder / "spool",
        "SlurmctldPidFile": folder / "slurmctld.pid",
        "SlurmdPidFile": folder / "slurmd.pid",
        "SlurmctldLogFile": folder / "slurmctld.log",
        "SlurmdLogFile": folder / "slurmd.log",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "SlurmdParameters": "config_overrides",
        "NodeName": f"{host} CPUs=4 State=UNKNOWN",
        "PartitionName": "all Nodes=ALL Default=YES State=UP",
    }
    return "".join(f"{name}={value}\n" for name, value in lines.items())


def wait_until_idle(environ: dict[str, str]) -> None:
    deadline = time.monotonic() + 30
    state = ""
    while time.monotonic() < deadline:
        answer = subprocess.run(
            ["sinfo", "-h", "-o", "%T"], env=environ, capture_output=True, text=True
        )
        state = answer.stdout.strip()
        if state == "idle":
            return
        time.sleep(0.3)
    raise AssertionError(f"Slurm is {state or 'silent'} after 30 s")
