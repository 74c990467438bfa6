"""What the experiments share: starting ranks, describing the machine, summarising samples."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
FLAGS = ("--bind-to", "none", "--map-by", ":OVERSUBSCRIBE")
MARK = "RESULT "
ROOT_VARIABLES = [f"{p}_ALLOW_RUN_AS_ROOT{e}" for p in ("OMPI", "PRTE") for e in ("", "_CONFIRM")]


def job_environment() -> dict[str, str]:
    """Return this environment without settings of an earlier job, one thread per rank."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("HOROVOD_")}
    permission = dict.fromkeys(ROOT_VARIABLES, "1") if os.geteuid() == 0 else {}
    return {**kept, "OMP_NUM_THREADS": "1", **permission}


def run_ranks(
    ranks: int,
    words: Sequence[str | Path],
    limit_s: float,
    *,
    flags: Sequence[str] = (),
    **environ: str,
) -> Any:
    """Run a Python script on ``ranks`` ranks of this host and return what rank 0 tells.

    Args:
        ranks: Number of ranks.
        words: Script and arguments.
        limit_s: A longer job ends the experiment.
        flags: More flags of mpirun.
        environ: Variables of the job.
    """
    mpirun = BIN / "mpirun"
    command = [str(mpirun) if mpirun.exists() else "mpirun", "-n", str(ranks), *FLAGS, *flags]
    command += [sys.executable, *map(str, words)]
    environment = job_environment() | environ
    return collect(subprocess.Popen(command, **PIPES, env=environment), limit_s)


PIPES: dict[str, Any] = {
    "stdin": subprocess.DEVNULL,
    "stdout": subprocess.PIPE,
    "stderr": subprocess.PIPE,
    "text": True,
}


def collect(process: subprocess.Popen[str], limit_s: float) -> Any:
    """Wait for a job and return what its rank 0 told; a job that failed ends the experiment."""
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.communicate(timeout=20)
        sys.exit(f"no end within {limit_s} s: {process.args}")
    for line in out.splitlines():
        if line.startswith(MARK):
            return json.loads(line.removeprefix(MARK))
    sys.exit(f"{process.args} failed ({process.returncode}):\n{out}\n{err}")


def tell(result: Any) -> None:
    """Hand a result from rank 0 to ``collect``."""
    print(MARK + json.dumps(result), flush=True)


def machine() -> dict[str, Any]:
    """Return what the figures depend on."""
    names = (line for line in open("/proc/cpuinfo") if line.startswith("model name"))
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False)
    return {
        "cpu": next(names, platform.machine()).split(":")[-1].strip(),
        "cores": len(os.sched_getaffinity(0)),
        "load_at_start": round(os.getloadavg()[0], 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "mpi4py", "numpy", "hvd-autotune")},
        "mpirun_flags": " ".join(FLAGS),
        "commit": commit.stdout.strip(),
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
    }


def scheduling() -> str:
    """Return how the kernel schedules this process and the jobs that it starts."""
    policy = os.sched_getscheduler(0)
    if policy in (os.SCHED_RR, os.SCHED_FIFO):
        return f"real-time priority {os.sched_getparam(0).sched_priority}"
    return f"nice {os.nice(0)}"


def machine_line(about: dict[str, Any]) -> str:
    """Return ``machine()`` as one sentence for a report."""
    return (
        f"{about['cores']} cores ({about['cpu']}), load {about['load_at_start']} at the start, "
        f"torch {about['torch']}, commit {about['commit']}, {about['date']}"
    )


def summary(values: Sequence[float]) -> dict[str, float]:
    """Return median, smallest, largest and number of ``values``."""
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "n": len(values),
    }


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Return "median (min-max)"."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def size_name(size_bytes: int) -> str:
    """Return a fusion threshold for people."""
    if size_bytes == 0:
        return "no fusion"
    mib = size_bytes / 2**20
    return f"{mib:g} MiB" if mib >= 1 else f"{size_bytes / 1024:g} KiB"
