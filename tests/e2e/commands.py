"""Runs commands as a user would, and ends what they leave behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from horovod.runner.become import SESSION_PLACE

BIN = Path(sys.executable).parent
JOB = Path(__file__).with_name("job.py")
ARRAYS_JOB = Path(__file__).with_name("arrays_job.py")
SETTINGS_JOB = Path(__file__).with_name("settings_job.py")
WEIGHTS_JOB = Path(__file__).with_name("weights.py")
WITH_TESTS = {"PYTHONPATH": str(Path(__file__).parents[1])}
"""For scripts that import ``e2e.on_arrays``."""
FAST = {
    "HOROVOD_AUTOTUNE": "1",
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "1",
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "5",
    "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "4",
    "HOROVOD_AUTOTUNE_BUDGET": "1",
    "HOROVOD_AUTOTUNE_SEED": "1",
}
"""A tuner that is done after a few hundred steps."""


@dataclass
class Commands:
    """Runs commands in ``folder`` and ends what a test leaves behind."""

    folder: Path
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(
        self, *words: str | Path, stderr: IO[str] | None = None, **environ: str
    ) -> subprocess.Popen[str]:
        if words[0] == "mpirun":  # killed ones leave files that hinder others of the same number
            environ = {SESSION_PLACE: str(self.folder), **environ}
        process = subprocess.Popen(
            [str(word) for word in words],
            cwd=self.folder,
            env=self.environment(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr or subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.running.append(process)
        return process

    def run(
        self, *words: str | Path, limit_s: float = 60, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        process = self.start(*words, **environ)
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            try:
                shown = process.communicate(timeout=10)
            except subprocess.TimeoutExpired as error:  # somebody else holds the pipes
                shown = error.stdout, error.stderr
            raise AssertionError(f"no end within {limit_s} s: {shown}") from None
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def environment(self, more: dict[str, str]) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("HOROVOD_")}
        path = os.pathsep.join([str(BIN), kept.get("PATH", "")])
        return {**kept, "PATH": path, "OMP_NUM_THREADS": "1", **root_variables(), **more}

    def job(self, steps: int, sleep_s: float = 0.0) -> list[str | Path]:
        return [sys.executable, JOB, self.folder, str(steps), str(sleep_s)]

    def arrays_job(self, steps: int, *seconds_per_step: float) -> list[str | Path]:
        """Return the job without torch: for what becomes of a job, whatever it trains."""
        return [sys.executable, ARRAYS_JOB, self.folder, str(steps), *map(str, seconds_per_step)]

    def settings_job(self) -> list[str | Path]:
        """Return the job that only starts: for what is known or refused by then."""
        return [sys.executable, SETTINGS_JOB, self.folder]

    def ranks(self, size: int) -> list[dict[str, Any]]:
        return [json.loads((self.folder / f"rank-{r}.json").read_text()) for r in range(size)]

    def end(self) -> None:
        for process in self.running:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.communicate(timeout=10)


def root_variables() -> dict[str, str]:
    """Return what plain mpirun wants of root."""
    if os.getuid() != 0:
        return {}
    names = [f"{p}_ALLOW_RUN_AS_ROOT{s}" for p in ("OMPI", "PRTE") for s in ("", "_CONFIRM")]
    return dict.fromkeys(names, "1")


def wait_until(true: Callable[[], Any], limit_s: float = 60) -> Any:
    """Return the first value of ``true()`` that is true."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        value = true()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {limit_s} s: {true}")


def settings_of(rows: list[str]) -> list[str]:
    """Return the rows of a CSV without their scores: the last one repeats another's setting."""
    return [row.rpartition(",")[0] for row in rows]


@dataclass(frozen=True, kw_only=True)
class TunedJob:
    """A job that was tuned to its end, and its log."""

    log: Path
    output: subprocess.CompletedProcess[str]
    ranks: list[dict[str, Any]]

    @property
    def rows(self) -> list[str]:
        return self.log.read_text().splitlines()[1:]
