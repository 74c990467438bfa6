"""Starts the ranks of a job without MPI: ``python -m horovod.runner.starter PLAN COMMAND ...``.

It takes mpirun's place under ``supervise``: a child of the launcher, whose output, standard input
and signals it shares. It runs the point where the ranks meet, and one ``host_process`` per host, on
others by ssh. The key of the job goes to ranks in their environment, to other hosts over the
standard input of ssh, and is on no command line.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import os
import queue
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from horovod.common import interfaces, launched, secret
from horovod.common.meeting import MeetingPoint
from horovod.runner import become
from horovod.runner.mpirun import passed_variables
from horovod.runner.placing import THIS_HOST, HostRanks, rank_places
from horovod.runner.rank_process import encode_record
from horovod.runner.supervise import RecordReader, write_all

CHECK_SECONDS = 0.5
END_SECONDS = 10.0
"""What ranks have to end after a signal, before they are killed."""
FAILURE_SECONDS = 5.0
"""The same where one of them has failed."""
LOST_SECONDS = 5.0
"""Longer than that, the process that runs a host's ranks is not waited for."""
MOST_INPUT = 1 << 20
"""Bytes of our standard input that may be on their way to rank 0."""
LIVELY = ("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4")
"""ssh ends, and with it the job, a minute after the other host has gone."""
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
WAKING = {*ENDING, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to start; it travels as JSON, and holds nothing that is secret.

    Attributes:
        size: Number of ranks.
        hosts: Where they run.
        options: Of ``rank_process``, for all ranks.
        interfaces: Network interfaces to use, in order of preference; empty: any.
        ssh: Words between ``ssh`` and the host.
    """

    size: int
    hosts: Sequence[HostRanks]
    options: Mapping[str, Any]
    interfaces: Sequence[str] = ()
    ssh: Sequence[str] = ()

    def encode(self) -> str:
        """Return the plan as text."""
        return json.dumps(dataclasses.asdict(self))


def decode(text: str) -> Plan:
    """Return the plan that ``Plan.encode`` wrote."""
    fields = json.loads(text)
    hosts = [HostRanks(name=h["name"], ranks=tuple(h["ranks"])) for h in fields.pop("hosts")]
    return Plan(hosts=hosts, **fields)


def host_command(name: str, ssh: Sequence[str]) -> list[str]:
    """Return the words that run ``host_process`` on the host ``name``.

    Raises:
        FileNotFoundError: There is no ssh.
    """
    words = [sys.executable, "-I", "-S", str(Path(__file__).with_name("host_process.py"))]
    if name == THIS_HOST:
        return words
    program = shutil.which("ssh")
    if program is None:
        raise FileNotFoundError(f"there is no ssh to reach {name}")
    guard = [sys.executable, "-I", "-S", become.__file__, str(os.getpid()), program]
    place = name.replace("[", "").replace("]", "")
    return [*guard, "-T", "-x", "-o", "BatchMode=yes", *LIVELY, *ssh, place, shlex.join(words)]


class Listens(Protocol):
    """Who learns what the ranks of a host report."""

    def note(self, record: Mapping[str, Any]) -> bool:
        """Take note of a record; return whether the launcher wants it, too."""


class Host:
    """The ranks of a host, seen from here.

    Args:
        ranks: Where, and which.
        words: What runs them.
        first: The first line that it gets.
        job: Learns what its ranks report.
    """

    def __init__(
        self, ranks: HostRanks, words: Sequence[str], first: Mapping[str, Any], job: Listens
    ) -> None:
        self.ranks = ranks
        self._job = job
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        is_here = ranks.name == THIS_HOST
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=None if is_here else subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            process_group=0,
        )
        self.tell(first)
        threads = [(self._write, ()), (self._read_errors, ())]
        self._readers = []
        for target, arguments in [*threads, *([] if is_here else [(self._read_output, ())])]:
            thread = threading.Thread(target=target, args=arguments, daemon=True)
            thread.start()
            if target != self._write:
                self._readers.append(thread)

    def tell(self, order: Mapping[str, Any]) -> None:
        """Send an order; never waits."""
        self._lines.put(json.dumps(order).encode() + b"\n")

    def finish(self) -> None:
        """Give no more orders: what runs the ranks ends them, and itself; never waits."""
        self._lines.put(None)

    def drain(self, deadline: float) -> None:
        """Wait until all that the ranks wrote has been passed on, or until ``deadline``."""
        for reader in self._readers:
            reader.join(max(0.0, deadline - time.monotonic()))

    def _write(self) -> None:
        pipe = _opened(self.process.stdin)
        with contextlib.suppress(OSError):  # it has ended: its end says how
            while line := self._lines.get():
                left = memoryview(line)
                while left:
                    left = left[pipe.write(left) or 0 :]
        with contextlib.suppress(OSError):
            pipe.close()

    def _read_output(self) -> None:
        pipe = _opened(self.process.stdout)
        while data := os.read(pipe.fileno(), 1 << 16):
            write_all(1, data)

    def _read_errors(self) -> None:
        """Pass on errors and, each in one piece, records; some records are for us."""
        pipe, reader = _opened(self.process.stderr), RecordReader()
        while data := os.read(pipe.fileno(), 1 << 16):
            passed, records = reader.feed(data)
            if passed:
                write_all(2, passed)
            for record in records:
                if self._job.note(record):
                    write_all(2, encode_record(dict(record)))
        if rest := reader.rest():
            write_all(2, rest)


class Job:
    """All ranks, from the start to the end.

    Attributes:
        hosts: Theirs.
        code: Exit code of the first rank that failed by itself, 0 while none has.
    """

    def __init__(self) -> None:
        self.hosts: list[Host] = []
        self.code = 0
        self._code_of_hosts = 0
        self._kill_at: float | None = None
        self._input = threading.Condition()
        self._on_its_way = 0

    def note(self, record: Mapping[str, Any]) -> bool:
        """Take note of a record; return whether the launcher wants it, too."""
        if "taken" in record:
            with self._input:
                self._on_its_way -= int(record["taken"])
                self._input.notify_all()
            return False
        code = 0 if record.get("told") else int(record.get("code", 0))
        if code and not self.code:
            self.code = code if code > 0 else 128 - code
            os.kill(os.getpid(), signal.SIGCHLD)  # the loop below looks at once
        return True

    def run(self) -> int:
        """Wait for the end of all ranks, pass on signals, and return the exit code."""
        first_signal = 0
        while self._reap():
            info = signal.sigtimedwait(WAKING, CHECK_SECONDS)
            number = info.si_signo if info else signal.SIGCHLD
            if number in ENDING:
                self._end(0.0 if first_signal else END_SECONDS)
                first_signal = first_signal or number
            elif number != signal.SIGCHLD:
                self._tell({"signal": number})
            if (self.code or self._code_of_hosts) and self._kill_at is None:
                self._end(FAILURE_SECONDS)
            self._kill_the_lost()
        deadline = time.monotonic() + LOST_SECONDS
        for host in self.hosts:
            host.drain(deadline)
        return self.code or self._code_of_hosts or (128 + first_signal if first_signal else 0)

    def _end(self, seconds: float) -> None:
        """End all ranks: SIGTERM, and after ``seconds`` by force."""
        self._kill_at = time.monotonic() + seconds + LOST_SECONDS
        self._tell({"signal": signal.SIGTERM, "seconds": seconds})

    def _tell(self, order: Mapping[str, Any]) -> None:
        for host in self.hosts:
            host.tell(order)

    def _reap(self) -> bool:
        """Note which hosts' ranks have ended; True while any runs."""
        for host in self.hosts:
            code = host.process.poll()
            if code and not self._code_of_hosts:
                self._code_of_hosts = code if code > 0 else 128 - code
                if host.ranks.name != THIS_HOST and code == 255 and not self.code:
                    write_all(2, encode_record(_lost(host.ranks)))
        return any(host.process.poll() is None for host in self.hosts)

    def _kill_the_lost(self) -> None:
        if self._kill_at is not None and time.monotonic() > self._kill_at:
            for host in self.hosts:
                host.process.kill()

    def feed(self, host: Host) -> None:
        """Pass on our standard input to rank 0, on ``host``, as fast as it reads."""
        while data := _read_input():
            with self._input:
                self._input.wait_for(lambda: self._on_its_way < MOST_INPUT)
                self._on_its_way += len(data)
            host.tell({"input": base64.b64encode(data).decode()})
        host.tell({"input": ""})


def _read_input() -> bytes:
    """Return the next bytes of our standard input, b"" at its end.

    In the background a terminal gives none, until we are in its foreground.
    """
    while True:
        try:
            return os.read(0, 1 << 14)
        except OSError:
            if not os.isatty(0):
                return b""
            time.sleep(CHECK_SECONDS)


def start(plan: Plan, command: Sequence[str], environ: Mapping[str, str]) -> Job:
    """Start the meeting point and all ranks."""
    key = environ.get(secret.ENV, "").strip() or secrets.token_hex(32)
    is_local = all(host.name == THIS_HOST for host in plan.hosts)
    meeting = MeetingPoint(plan.size, key, host="127.0.0.1" if is_local else "")
    other = next((host.name for host in plan.hosts if host.name != THIS_HOST), "")
    places = rank_places(plan.hosts, plan.size)
    job = Job()
    for host in plan.hosts:
        address = "127.0.0.1"
        if not is_local:
            address = interfaces.address_towards(host.name or other, plan.interfaces)
        passed = (
            {} if host.name == THIS_HOST else {n: environ[n] for n in passed_variables(environ)}
        )
        job_variables = {
            launched.CONTROLLER: "gloo",
            launched.MEETING_HOST: address,
            launched.MEETING_PORT: str(meeting.port),
            secret.ENV: key,
        }
        if plan.interfaces:
            job_variables["HOROVOD_GLOO_IFACE"] = ",".join(plan.interfaces)
        first = {
            "command": list(command),
            "environ": {**passed, **job_variables},
            "folder": os.getcwd(),
            "ranks": [{**plan.options, "place": places[rank]} for rank in host.ranks],
            "input": 0 in host.ranks,
        }
        words = host_command(host.name, plan.ssh)
        job.hosts.append(Host(host, words, first, job))
        if first["input"]:
            threading.Thread(target=job.feed, args=(job.hosts[-1],), daemon=True).start()
    return job


def _lost(host: HostRanks) -> dict[str, Any]:
    """Return the record of ranks to which ssh had no connection, or lost it."""
    why = f"the connection to {host.name} failed; ssh said why, if it knew"
    return {"rank": host.ranks[0], "host": host.name, "code": 255, "told": False, "tail": [why]}


def _opened(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def _say(text: str) -> None:
    write_all(2, f"horovodrun: {text}\n".encode())


def main(argv: Sequence[str]) -> None:
    """Start the job and end as it ended."""
    signal.pthread_sigmask(signal.SIG_BLOCK, WAKING)
    signal.signal(signal.SIGTTIN, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        job = start(decode(argv[1]), argv[2:], os.environ)
    except OSError as error:
        _say(f"cannot start the job: {error}")
        os._exit(1)
    os._exit(job.run())


if __name__ == "__main__":
    main(sys.argv)
