"""Watches a running ``mpirun``: passes signals on, and learns which rank was the first to fail.

mpirun, in whose place ``starter`` stands where there is no MPI, is a child in the same process
group, with the same standard input and output. Its standard error comes through us, without the
records that the ranks' processes put there (see ``rank_process``).
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from horovod.runner import become
from horovod.runner.rank_process import RECORD_END, RECORD_START

Sink = Callable[[bytes], object]

SI_KERNEL = 0x80
"""``si_code`` of a signal that the terminal sends: to the whole group, mpirun included."""

FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
WAKING = {*FORWARDED, signal.SIGCHLD}
CHECK_SECONDS = 1.0
DRAIN_SECONDS = 5.0
START_WARNING_SECONDS = 30.0
"""After this time ranks that have not started are named, where no limit says otherwise."""
FAILURE_SECONDS = 3.0
"""How long mpirun has to end the other ranks when one failed; MPICH's may wait for them."""


@dataclass(frozen=True, kw_only=True)
class End:
    """How a rank ended.

    Attributes:
        rank: The rank.
        host: Its host.
        code: Its exit code, or -n for signal n.
        told: It had been told to end before it did.
        tail: Its last lines.
    """

    rank: int
    host: str
    code: int
    told: bool
    tail: Sequence[str]

    @property
    def exit_code(self) -> int:
        """The exit code by which a shell would know it."""
        return self.code if self.code >= 0 else 128 - self.code

    def describe(self) -> str:
        """Return what people want to know first."""
        how = f"exit code {self.code}"
        if self.code < 0:
            how = f"ended by signal {-self.code} ({signal.Signals(-self.code).name})"
        elif self.code == 0:
            how += (
                ", but it left without ending MPI, as after an error of the engine that its script "
                "has caught; MPI then ends the other ranks"
            )
        lines = [f"rank {self.rank} on {self.host} was the first to fail: {how}"]
        if self.tail:
            lines[0] += "; its last lines:"
        return "\n".join([*lines, *(f"    | {line}" for line in self.tail)])


class RecordReader:
    """Takes the records out of a stream of bytes."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> tuple[bytes, list[dict[str, Any]]]:
        """Return (what is no record, the records); the beginning of a record waits for its end."""
        data = self._pending + data
        records: list[dict[str, Any]] = []
        passed = b""
        while (start := data.find(RECORD_START)) >= 0:
            end = data.find(RECORD_END, start)
            if end < 0:
                break
            passed += data[:start]
            records.append(_decode(data[start + len(RECORD_START) : end]))
            data = data[end + len(RECORD_END) :]
        keep = start if start >= 0 else len(data) - _overlap(data, RECORD_START)
        self._pending = data[keep:]
        return passed + data[:keep], [record for record in records if record]

    def rest(self) -> bytes:
        """Return what waited in vain."""
        rest, self._pending = self._pending, b""
        return rest


def _decode(text: bytes) -> dict[str, Any]:
    try:
        content = json.loads(base64.b64decode(text, validate=True))
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _overlap(data: bytes, start: bytes) -> int:
    """Return how many bytes at the end of ``data`` may be the beginning of ``start``."""
    return next((n for n in range(len(start) - 1, 0, -1) if data.endswith(start[:n])), 0)


class RunningJob:
    """An mpirun that runs.

    Args:
        words: The command line; the first is an absolute path.
        environ: Its environment.
        out: Where its standard output goes; None: to our own, untouched.
        err: Where its standard error goes.

    Attributes:
        ends: Of ranks, in the order in which we heard of them.
        started: Ranks whose process runs.
        told: Ranks that were told to end; mpirun may kill one before it says how it ended.
        ended_by_us: A rank failed, and mpirun had to be told to end the others.
    """

    def __init__(
        self, words: Sequence[str], environ: Mapping[str, str], *, err: Sink, out: Sink | None
    ) -> None:
        self.ends: list[End] = []
        self.started: set[int] = set()
        self.told: set[int] = set()
        self.ended_by_us = False
        self._failed_at: float | None = None
        guard = [sys.executable, "-I", "-S", become.__file__, str(os.getpid())]
        self.process = subprocess.Popen(
            [*guard, *words],
            env=dict(environ),
            stdout=None if out is None else subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        pipes = [(self.process.stderr, err), (self.process.stdout, out)]
        self._readers = [
            threading.Thread(target=self._relay, args=pipe, daemon=True)
            for pipe in pipes
            if pipe[0] is not None
        ]
        for reader in self._readers:
            reader.start()

    def _relay(self, pipe: IO[bytes], sink: Sink) -> None:
        reader = RecordReader()
        while data := os.read(pipe.fileno(), 1 << 16):
            passed, records = reader.feed(data)
            if passed:
                sink(passed)
            for record in records:
                self._note(record)
        if rest := reader.rest():
            sink(rest)

    def _note(self, record: Mapping[str, Any]) -> None:
        if "started" in record:
            self.started.add(record["started"])
        elif "ending" in record:
            self.told.add(record["ending"])
        else:
            self.ends.append(End(**record))
            if record["code"]:
                self._failed_at = self._failed_at or time.monotonic()

    def end_after_failure(self) -> None:
        """End the other ranks where mpirun does not, although one failed: SIGTERM, then SIGKILL."""
        late = 0.0 if self._failed_at is None else time.monotonic() - self._failed_at
        if late > FAILURE_SECONDS and not self.ended_by_us:
            self.ended_by_us = True
            self.send(signal.SIGTERM)
        elif late > 5 * FAILURE_SECONDS:
            self.send(signal.SIGKILL)

    def drain(self) -> None:
        """Wait until all that mpirun wrote has been passed on."""
        deadline = time.monotonic() + DRAIN_SECONDS
        for reader in self._readers:
            reader.join(max(0.0, deadline - time.monotonic()))
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None and not any(reader.is_alive() for reader in self._readers):
                pipe.close()

    def send(self, number: int) -> None:
        """Send a signal to mpirun, which passes it on to the ranks or ends them."""
        if self.process.poll() is None:
            self.process.send_signal(number)

    @property
    def failures(self) -> list[End]:
        """Ranks that did not end well."""
        return [end for end in self.ends if end.code]

    def first_failure(self) -> End | None:
        """Return the rank that failed first, by itself if there is one.

        Where ranks were only told to end, that is the one that ended first: it ended well as far as
        it knows, and MPI did not think so.
        """
        failures = self.failures
        alone = [end for end in failures if not end.told]
        killed = self.told - {end.rank for end in self.ends}
        before = [end for end in self.ends if not end.told] if failures or killed else []
        return next(iter([*alone, *before, *failures]), None)


def supervise(
    words: Sequence[str],
    environ: Mapping[str, str],
    *,
    size: int,
    start_timeout_s: float | None = None,
) -> int:
    """Run ``words``, pass on signals, and return the exit code of the job. **Main thread only.**

    Args:
        words: The mpirun command line.
        environ: Its environment.
        size: Number of ranks.
        start_timeout_s: Longest wait for the start of all ranks; None: no limit, but a warning.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WAKING)
    try:
        job = RunningJob(words, environ, out=None, err=lambda data: write_all(2, data))
        signals = _watch(job, size, start_timeout_s)
        job.drain()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return conclude(job, signals)


def write_all(number: int, data: bytes) -> None:
    """Write ``data`` to a file descriptor, as far as somebody reads it."""
    left = memoryview(data)
    with contextlib.suppress(OSError):  # nobody reads: mpirun must be able to go on
        while left:
            left = left[os.write(number, left) :]


def _watch(job: RunningJob, size: int, start_timeout_s: float | None) -> list[int]:
    """Return the signals that came until mpirun ended."""
    limit_s = START_WARNING_SECONDS if start_timeout_s is None else start_timeout_s
    deadline: float | None = time.monotonic() + limit_s
    signals: list[int] = []
    while job.process.poll() is None:
        info = signal.sigtimedwait(WAKING, CHECK_SECONDS)
        if info and info.si_signo != signal.SIGCHLD:
            signals.append(info.si_signo)
            if info.si_code != SI_KERNEL:
                job.send(info.si_signo)
        job.end_after_failure()
        if deadline is not None and len(job.started) >= size:
            deadline = None
        if deadline is not None and time.monotonic() > deadline:
            deadline = None
            _say(_late(job.started, size, limit_s, ends=start_timeout_s is not None))
            if start_timeout_s is not None:
                job.send(signal.SIGTERM)
                signals.append(signal.SIGTERM)
    return signals


def _late(started: set[int], size: int, limit_s: float, *, ends: bool) -> str:
    missing = [rank for rank in range(size) if rank not in started]
    shown = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
    then = "More time" if ends else "The job goes on waiting; a limit"
    return (
        f"after {limit_s:g} s {len(missing)} of {size} ranks have not started (rank {shown}): "
        f"are all hosts reachable (ssh HOST true) and is this Python installed there? {then}: "
        "--start-timeout"
    )


def conclude(job: RunningJob, signals: Sequence[int]) -> int:
    """Return the exit code of a job that ended; says which rank failed first, if one did."""
    code = job.process.returncode
    code = code if code >= 0 else 128 - code
    failure = job.first_failure()
    ending = [number for number in signals if number not in (signal.SIGUSR1, signal.SIGUSR2)]
    if ending:
        return code or 128 + ending[0]
    if failure is None:
        return code
    _say(failure.describe())
    return (failure.exit_code or code) if job.ended_by_us else (code or failure.exit_code)


def _say(text: str) -> None:
    print(f"horovodrun: {text}", file=sys.stderr, flush=True)


def rank_command(command: Sequence[str], options: Mapping[str, Any]) -> list[str]:
    """Return the words that run ``command`` under ``rank_process`` with ``options``."""
    program = Path(__file__).with_name("rank_process.py")
    return [sys.executable, "-I", "-S", str(program), json.dumps(options), *command]
