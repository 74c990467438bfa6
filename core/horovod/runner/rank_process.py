"""Runs the command of one rank: ``python -I -S rank_process.py OPTIONS COMMAND ...``.

It stands between what starts ranks (mpirun, or ``host_process``) and the command, which runs as its
child with the same standard input, environment and open files. What the command writes passes
through unchanged, byte by byte, and is also kept: in a file per stream, and as the last lines that
the launcher shows when this rank is the first to fail. Signals go to the command, its exit code or
signal becomes ours.

A *record* is how this process speaks to the launcher: JSON in base64 between two marks, in
standard error, where it arrives from any host. Standard library only; it is run by its path.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import resource
import selectors
import signal
import socket
import subprocess
import sys
import time
import tty
from pathlib import Path
from typing import Any

RECORD_START = b"\x1ehorovodrun:"
RECORD_END = b"\x1e\n"
TAIL_LINES = 20
TAIL_BYTES = 2000
HOLD_SECONDS = 0.1  # this long a line that has begun waits for its end
HOLD_BYTES = 1 << 16
"""A record must stay below 4096 bytes: that much is written to a pipe in one piece."""

RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
LOCAL_VARIABLES = (
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
"""Where Open MPI, MPICH and Intel MPI say a rank's place on its host."""
PLACE_VARIABLES = tuple(
    f"HOROVOD_{where}{what}" for where in ("", "LOCAL_", "CROSS_") for what in ("RANK", "SIZE")
)
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
PASSED_ON = (*ENDING, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
KILL_COMMAND = signal.SIGRTMIN
"""Kills the command and what it has started: SIGKILL itself cannot be passed on."""
CANNOT_START = 127
ORPHAN_CHECK_SECONDS = 1.0
"""How often a rank looks whether what started it (mpirun, its daemon) is still there."""
ORPHAN_GRACE_SECONDS = 5.0
"""Time between the two signals, SIGTERM and SIGKILL, that end a command without a launcher."""


def find_rank(environ: Any) -> int:
    """Return the rank that the launcher of this process says, 0 where it says none."""
    texts = (environ.get(name, "") for name in RANK_VARIABLES)
    return next((int(text) for text in texts if text.isdecimal()), 0)


def own_rank(options: dict[str, Any]) -> int:
    """Return the rank of this process: what ``options`` say, or MPI's launcher."""
    rank: int = options.get("place", {}).get("RANK", -1)
    return find_rank(os.environ) if rank < 0 else rank


def place_of(environ: Any, size: int, hosts: int) -> dict[str, int]:
    """Return a rank's place by the names of Horovod's variables without their prefix.

    Libraries read those variables without an ``init``.

    Args:
        environ: Of this process, from MPI's launcher.
        size: Number of ranks.
        hosts: How many hosts run equally many ranks, one after the other; 0: not known. The place
            among the hosts is said where it is certain.
    """
    rank = find_rank(environ)
    place = {"RANK": rank, "SIZE": size}
    for names in LOCAL_VARIABLES:
        texts = [environ.get(name, "") for name in names]
        if all(text.isdecimal() for text in texts):
            local_rank, local_size = map(int, texts)
            place |= {"LOCAL_RANK": local_rank, "LOCAL_SIZE": local_size}
            cross_size = 1 if local_size == size else hosts
            if cross_size * local_size == size and rank % local_size == local_rank:
                place |= {"CROSS_RANK": rank // local_size, "CROSS_SIZE": cross_size}
            break
    return place


def encode_record(content: dict[str, Any]) -> bytes:
    """Return ``content`` as a record."""
    return RECORD_START + base64.b64encode(json.dumps(content).encode()) + RECORD_END


def rank_folder(output: str, rank: int, size: int) -> Path:
    """Return Horovod's folder of a rank: ``<output>/rank.<zero-padded>``."""
    return Path(output) / f"rank.{rank:0{len(str(size - 1))}d}"


class Tail:
    """The last lines of both streams, whole ones, in the order in which they ended."""

    def __init__(self) -> None:
        self._bytes = b""
        self._begun: dict[int, bytes] = {}  # of each stream: the line that has not ended

    def add(self, number: int, data: bytes) -> None:
        """Append ``data`` of stream ``number``; only the end is kept."""
        lines, newline, begun = (self._begun.get(number, b"") + data).rpartition(b"\n")
        self._bytes = (self._bytes + lines + newline)[-4 * TAIL_BYTES :]
        self._begun[number] = begun[-4 * TAIL_BYTES :]

    def lines(self) -> list[str]:
        """Return at most ``TAIL_LINES`` lines, together at most ``TAIL_BYTES`` bytes."""
        begun = (line for line in self._begun.values() if line)
        kept = b"\n".join((self._bytes.removesuffix(b"\n"), *begun))
        text = kept.strip(b"\r\n")[-TAIL_BYTES:].decode("ascii", "backslashreplace")
        return text[-TAIL_BYTES:].splitlines()[-TAIL_LINES:]


class NotStartedError(Exception):
    """The command does not run: why, and the exit code that says so."""

    def __init__(self, why: str, code: int) -> None:
        super().__init__(why)
        self.code = code


class Copy:
    """A file that keeps what a stream of the command says; a job goes on without it.

    Raises:
        NotStartedError: The file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise NotStartedError(f"--output-filename: {path}: {error.strerror}", 1) from None

    def write(self, data: bytes) -> str:
        """Append ``data``; return what is wrong, once, '' if nothing is."""
        try:
            _write_all(self._fd, b"" if self._fd < 0 else data)
        except OSError as error:
            os.close(self._fd)
            self._fd = -1
            return f"{self.path} is incomplete: {error.strerror}"
        return ""


class Stream:
    """One of the two streams of the command, on its way to ours.

    Args:
        number: 1 or 2, our own file descriptor.
        copy: What is kept of it in a file, or None.
        tail: Where the last lines are kept.
        timestamps: Every line gets the time in front.
        terminal: The command gets a terminal; it does also where ours is one.
    """

    def __init__(
        self, number: int, copy: Copy | None, tail: Tail, timestamps: bool, terminal: bool
    ) -> None:
        self.number = number
        self.source, self.given = _channel(terminal or os.isatty(number))
        self._copy = copy
        self._tail, self._timestamps, self._line_begins = tail, timestamps, True
        self._readers_are_gone = False
        self._held = b""
        self._held_since = 0.0

    def pump(self) -> bool:
        """Pass on the whole lines that are there; False at the end of the stream.

        Ranks share one output: what has begun without its end is held for ``HOLD_SECONDS``, so that
        the lines of programs that write them in pieces do not mix.
        """
        try:
            data = os.read(self.source, 1 << 16)
        except OSError:  # EIO: the last writer of a terminal closed it
            data = b""
        self._tail.add(self.number, data)
        data = self._stamped(data) if self._timestamps and data else data
        if self._copy and (wrong := self._copy.write(data)):
            with contextlib.suppress(OSError):
                os.write(2, f"horovodrun: {wrong}\n".encode(errors="backslashreplace"))
        self._write_on(self._whole_lines(data) if data else self._taken())
        return bool(data)

    def _whole_lines(self, data: bytes) -> bytes:
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1  # a progress bar ends in the second
        whole = self._taken() + data[:end] if end else b""
        if len(self._held) + len(data) - end > HOLD_BYTES:
            return whole + self._taken() + data[end:]
        if not self._held and end < len(data):
            self._held_since = time.monotonic()
        self._held += data[end:]
        return whole

    def _taken(self) -> bytes:
        held, self._held = self._held, b""
        return held

    def pass_on_late(self) -> bool:
        """Pass on what was held for long enough; True while something is held."""
        if self._held and time.monotonic() - self._held_since >= HOLD_SECONDS:
            self.pass_on_held()
        return bool(self._held)

    def pass_on_held(self) -> None:
        """Pass on what has begun without its end."""
        self._write_on(self._taken())

    def _write_on(self, data: bytes) -> None:
        try:
            _write_all(self.number, b"" if self._readers_are_gone else data)
        except OSError:
            self._readers_are_gone = True

    def _stamped(self, data: bytes) -> bytes:
        now = time.time()
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now)) + f".{now % 1:.3f}"[2:]
        lines = data.splitlines(keepends=True)
        starts = [self._line_begins, *(line.endswith(b"\n") for line in lines[:-1])]
        self._line_begins = lines[-1].endswith(b"\n")
        prefix = f"{stamp} ".encode()
        return b"".join(
            prefix + line if begins else line for begins, line in zip(starts, lines, strict=True)
        )


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _channel(terminal: bool) -> tuple[int, int]:
    """Return (read end, write end): a terminal where one is wanted and the system has one left."""
    with contextlib.suppress(OSError):
        if terminal:
            source, given = os.openpty()
            tty.setraw(given)
            return source, given
    return os.pipe()


class RankProcess:
    """The command of a rank, as a child of this process.

    Raises:
        NotStartedError: The command cannot be started, or a file of its output cannot be made.
    """

    def __init__(self, command: list[str], options: dict[str, Any]) -> None:
        self.rank = own_rank(options)
        self._worker = {"worker": options["worker"]} if "worker" in options else {}
        self.tail = Tail()
        self._told_to_end = False
        self._parent = os.getppid()
        self._orphaned_at: float | None = None
        number = options.get("worker", self.rank)
        folder = options.get("output") and rank_folder(options["output"], number, options["size"])
        lines = bool(options.get("terminal"))  # on which programs write whole lines, at once
        copies = [Copy(folder / name) if folder else None for name in ("stdout", "stderr")]
        self._streams = [
            Stream(number, copy, self.tail, bool(options.get("timestamps")), terminal)
            for number, copy, terminal in zip((1, 2), copies, (lines, False), strict=True)
        ]
        self._wake, wake_end = os.pipe()
        os.set_blocking(wake_end, False)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for name in PLACE_VARIABLES:
            os.environ.pop(name, None)  # those of a job that started this one
        size, hosts = options.get("size", 1), options.get("hosts", 0)
        place = options.get("place") or place_of(os.environ, size, hosts)
        os.environ.update({f"HOROVOD_{name}": str(number) for name, number in place.items()})
        os.environ.update(options.get("environ", {}))
        self._child = self._start(command)
        for number in PASSED_ON:
            signal.signal(number, self._pass_on)
        signal.signal(KILL_COMMAND, lambda *_: self._pass_on(signal.SIGKILL, None))

    def _start(self, command: list[str]) -> subprocess.Popen[bytes]:
        parent, prctl = os.getpid(), ctypes.CDLL(None).prctl

        def end_with_parent() -> None:
            prctl(1, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)

        out, err = (stream.given for stream in self._streams)
        try:
            child = subprocess.Popen(
                command,
                stdout=out,
                stderr=err,
                close_fds=False,  # MPICH's ranks speak to their launcher through an inherited one
                process_group=0,
                preexec_fn=end_with_parent,
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise NotStartedError(f"cannot start {command[0]!r}: {error}", CANNOT_START) from None
        os.close(out)
        os.close(err)
        return child

    def _pass_on(self, number: int, frame: object) -> None:
        if number in ENDING and not self._told_to_end:
            self._told_to_end = True
            send_record({"ending": self.rank})
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, number)

    def wait(self) -> int:
        """Pass on the streams until the command ends; return its exit code, -n for signal n."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake, selectors.EVENT_READ)
            for stream in self._streams:
                selector.register(stream.source, selectors.EVENT_READ, stream)
            while self._child.poll() is None:
                self._pump(selector, ORPHAN_CHECK_SECONDS)
                if os.getppid() != self._parent:
                    self._end_orphan()
            while self._pump(selector, 0):
                pass
        for stream in self._streams:
            stream.pass_on_held()
        return self._child.returncode

    def _end_orphan(self) -> None:
        """End the command: a launcher that was killed did not get to it."""
        if self._orphaned_at is None:
            self._orphaned_at = time.monotonic()
            self._pass_on(signal.SIGTERM, None)
        elif time.monotonic() - self._orphaned_at > ORPHAN_GRACE_SECONDS:
            self._pass_on(signal.SIGKILL, None)

    def _pump(self, selector: selectors.BaseSelector, timeout_s: float) -> bool:
        """Pass on what is there; False when nothing was."""
        streams = 0
        holds = any([stream.pass_on_late() for stream in self._streams])
        for key, _ in selector.select(min(timeout_s, HOLD_SECONDS) if holds else timeout_s):
            if key.data is None:
                os.read(self._wake, 1 << 12)
                continue
            streams += 1
            if not key.data.pump():
                selector.unregister(key.fileobj)
        return streams > 0

    def report(self, code: int) -> None:
        """Tell the launcher how the command ended, and its last lines where it did not end well."""
        content = {
            "rank": self.rank,
            "host": socket.gethostname(),
            "code": code,
            "told": self._told_to_end,
            "tail": self.tail.lines() if code else [],
            **self._worker,
        }
        send_record(content)


def send_record(content: dict[str, Any]) -> None:
    """Write a record in one piece."""
    with contextlib.suppress(OSError):
        os.write(2, encode_record(content))


def end_like(code: int) -> None:
    """End this process with ``code``, or by signal ``-code``."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


def main(argv: list[str]) -> None:
    """Run the command and end as it ended."""
    options, command = json.loads(argv[1]), argv[2:]
    if options.get("announce"):
        send_record({"started": own_rank(options)})
    try:
        process = RankProcess(command, options)
    except (NotStartedError, OSError) as error:
        rank, host, code = own_rank(options), socket.gethostname(), getattr(error, "code", 1)
        text = str(error)[-TAIL_BYTES:]
        content = {"rank": rank, "host": host, "code": code, "told": False, "tail": [text]}
        if "worker" in options:
            content["worker"] = options["worker"]
        send_record(content)
        os._exit(code)
    code = process.wait()
    process.report(code)
    end_like(code)


if __name__ == "__main__":
    main(sys.argv)
