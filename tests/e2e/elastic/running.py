"""An elastic job that runs, and what its log says."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from e2e.commands import wait_until
from e2e.elastic.on_arrays import alone
from e2e.processes import alive, descendants

JOB = Path(__file__).with_name("job.py")
LIMIT_S = 120.0


class Place(Protocol):
    """Where a job runs: ``Commands``, or hosts of its own."""

    folder: Path

    def start(
        self, *words: str | Path, stderr: IO[str] | None = None, **environ: str
    ) -> subprocess.Popen[str]:
        """Start a command there."""


@dataclass
class Running:
    """A job of ``job.py`` under horovodrun.

    Attributes:
        commands: Where it runs.
        flags: Of horovodrun.
        steps: That it trains.
        sleep_s: After each, in seconds.
        environ: More variables.
        hosts: What the discovery script prints; None: there is no script.
        kind: What it trains with, "arrays" or "torch".
        stderr: Where its standard error goes; None: to ``result``.
        pid_of: Returns the process that has written a line of the log, 0 where that has ended.
    """

    commands: Place
    flags: list[str]
    steps: int = 100_000
    sleep_s: float = 0.05
    environ: dict[str, str] = field(default_factory=dict)
    hosts: str | None = None
    kind: str = "arrays"
    stderr: IO[str] | None = None
    pid_of: Callable[[Mapping[str, Any]], int] = lambda line: int(line["pid"])

    def __post_init__(self) -> None:
        if self.hosts is not None:
            self.set_hosts(self.hosts)
            script = f"touch {self.folder}/looked; cat {self.folder}/hosts"
            self.flags = [*self.flags, "--host-discovery-script", script]
        job = [sys.executable, str(JOB), str(self.folder), str(self.steps), str(self.sleep_s)]
        job.append(self.kind)
        words = ["horovodrun", *self.flags, *job]
        self.process: subprocess.Popen[str] = self.commands.start(
            *words, stderr=self.stderr, **self.environ
        )

    @property
    def folder(self) -> Path:
        return self.commands.folder

    def set_hosts(self, text: str) -> None:
        """Let the discovery script print ``text`` from now on."""
        new = self.folder / "hosts.new"
        new.write_text(text.replace(",", "\n") + "\n")
        new.rename(self.folder / "hosts")

    def wait_for_discovery(self) -> None:
        """Wait until the driver knows what the discovery script prints now."""
        looked = self.folder / "looked"
        for _ in range(2):  # what the first run has printed is known when the second one begins
            looked.unlink(missing_ok=True)
            wait_until(looked.exists, LIMIT_S)

    def lines(self, what: str = "") -> list[dict[str, Any]]:
        """Return the log, or the lines of one kind."""
        try:
            text = (self.folder / "log").read_text()
        except FileNotFoundError:
            return []
        found = [json.loads(line) for line in text.splitlines(keepends=True) if line[-1] == "\n"]
        return [line for line in found if what in ("", line["what"])]

    def wait_for_step(self, step: int, size: int | None = None) -> dict[str, Any]:
        """Wait until ``step`` steps have been done, the last one by ``size`` ranks; return it."""

        def there() -> dict[str, Any] | None:
            assert self.process.poll() is None or self.lines("end"), self.process.communicate()
            last = self.lines("step")[-1:]
            right = last and last[0]["step"] >= step and size in (None, last[0]["size"])
            return last[0] if right else None

        found: dict[str, Any] = wait_until(there, LIMIT_S)
        return found

    def rank(self, number: int) -> dict[str, Any]:
        """Return what rank ``number`` of the newest round has said about itself."""
        return [line for line in self.lines("round") if line["rank"] == number][-1]

    def stop(self) -> None:
        """Let the ranks end their scripts at the next commit."""
        (self.folder / "stop").touch()

    def kill(self, number: int, by: int = signal.SIGKILL) -> None:
        os.kill(self.pid_of(self.rank(number)), by)

    def result(self) -> tuple[int, str]:
        """Wait for the end; return exit code and standard error. Nothing is left behind."""
        known = {*descendants(self.process.pid), *self._workers()}
        try:
            _, err = self.process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            log = "\n".join(map(str, self.lines()[-8:]))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            raise AssertionError(f"no end; the log ends with:\n{log}") from None
        pids = known | self._workers()
        deadline = time.monotonic() + 15
        while left := [pid for pid in pids if alive(pid)]:
            assert time.monotonic() < deadline, f"left behind: {left}"
            time.sleep(0.1)
        return self.process.returncode, err or ""

    def _workers(self) -> set[int]:
        """Return the processes of the workers that have said something and run."""
        last = {line["worker"]: line for line in self.lines()}
        return {self.pid_of(line) for line in last.values()} - {0}

    def check_weights(self, size: int) -> None:
        """All ranks have the weights of a training without interruption."""
        (steps,) = {line["step"] for line in self.lines("end")}
        expected = alone(steps)
        for rank in range(size):
            own = json.loads((self.folder / f"weights-{rank}.json").read_text())
            assert max(abs(a - b) for a, b in zip(own, expected, strict=True)) < 1e-12
