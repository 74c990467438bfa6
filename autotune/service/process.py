"""The tuner's own process on rank 0: ``python -m autotune.service``, JSON lines over its stdio.

It reads what ``protocol`` describes, drives one ``Tuner``, owns the trial logs and can
neither delay nor end the training: it runs at a low priority on one thread of linear algebra,
computes proposals in a background thread while it goes on reading, treats a log that breaks as a
log that is missing, and ends when its parent does.

Start-up is in two halves. Up to ``Ready`` only light modules are imported, because ``hvd.init``
waits for it; what planning needs (``imports``) follows while the script prepares its training, at
normal priority. Where ranks fill the cores, no step that is made meanwhile is read.
"""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autotune.errors import AutotuneError, ProtocolError
from autotune.service.imports import Imported, Imports
from autotune.service.priority import available_cores, become_ordinary, give_way
from autotune.service.protocol import (
    VERSION,
    Done,
    Finish,
    Hello,
    Inert,
    Line,
    Message,
    Ready,
    Refused,
    ResultCheck,
    Signature,
    Steps,
    decode,
    encode,
)

if TYPE_CHECKING:
    from autotune.service.logkeeper import LogKeeper
    from autotune.trial import Standing
    from autotune.tuning.comparing.replay_check import ReplayCheck
    from autotune.tuning.events import Event, Identified, Plan
    from autotune.tuning.tuner import Tuner

    Item = bytes | Plan | Imported

MOST_SIGNATURES = 1024
"""Kinds of steps whose operations are kept: a script may make another kind at any time."""
PARENT_POLL_S = 1.0
MOST_HELD_S = 20.0
"""Imports that take longer, from a slow file system say, hold the first reading up no more."""
PR_SET_PDEATHSIG = 1
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")


class EndOfInput(Exception):
    """Standard input was closed, or the parent is gone."""


class Inbox:
    """Everything that the main thread waits for, in one queue: lines, plans, the end.

    A ``SimpleQueue`` may be filled from a signal handler.
    """

    def __init__(self, parent: int) -> None:
        """Wait for nothing yet; ``parent`` is the process whose death is the end."""
        self._parent = parent
        self._queue: queue.SimpleQueue[Item | BaseException] = queue.SimpleQueue()

    def put(self, item: Item | BaseException) -> None:
        """Add an item, from any thread or a signal handler."""
        self._queue.put(item)

    def get(self) -> Item | None:
        """Return the next item, or None where nothing has come for a while.

        Raises:
            EndOfInput: There will be no more.
            Exception: Whatever a background computation raised.
        """
        try:
            item = self._queue.get(timeout=PARENT_POLL_S)
        except queue.Empty:
            if self.parent_is_gone():
                raise EndOfInput from None
            return None
        if isinstance(item, BaseException):
            raise item
        return item

    def parent_is_gone(self) -> bool:
        """Return whether the process that started this one has died."""
        return os.getppid() != self._parent

    def read_from(self, descriptor: int) -> None:
        """Put every line of ``descriptor``, then ``EndOfInput``; runs in a thread of its own."""
        rest = b""
        while chunk := os.read(descriptor, 1 << 16):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self.put(line)
        self.put(EndOfInput())


class Outbox:
    """Writes messages to the runtime."""

    def __init__(self, descriptor: int) -> None:
        """Write to ``descriptor``."""
        self._descriptor = descriptor

    def send(self, message: Message) -> None:
        """Write one message.

        Raises:
            EndOfInput: Nobody reads any more.
        """
        data = encode(message)
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except BrokenPipeError:
            raise EndOfInput from None


class Service:
    """One job: its tuner, its logs, and the dispatch between them and the pipe."""

    def __init__(self, inbox: Inbox, outbox: Outbox) -> None:
        """Serve what ``inbox`` receives."""
        self._inbox = inbox
        self._outbox = outbox
        self._operations: dict[int, tuple[tuple[str, int], ...]] = {}
        self._parts: tuple[int, ...] = ()
        self._unanswered: Identified | None = None
        self._heard_of_steps = time.monotonic()
        self._imports = Imports(inbox.put)
        self._is_oversubscribed = self._is_holding = False
        self._hold_ends = 0.0
        self._tuner: Tuner | ReplayCheck
        self._standing: Callable[[], Standing | None] = lambda: None
        self._logs: LogKeeper
        self._hello: Hello

    def run(self) -> int:
        """Serve until the job ends; return the exit status."""
        if not self._greet():
            return 2
        try:
            self._serve()
        except EndOfInput:
            self._end()
        except Exception as error:
            self._fail(error)
            return 1
        return 0

    # ---- start and end ------------------------------------------------------------------------

    def _greet(self) -> bool:
        """Answer ``Hello``; return whether the job was taken."""
        try:
            hello = self._receive_hello()
            self._take_job(hello)
        except AutotuneError as error:
            self._outbox.send(Refused(message=str(error)))
            return False
        except EndOfInput:
            return False
        self._outbox.send(Ready())
        give_way(besides=[self._imports.thread])
        return True

    def _receive_hello(self) -> Hello:
        while (item := self._inbox.get()) is None:
            pass
        assert isinstance(item, bytes)
        hello = decode(item)
        if not isinstance(hello, Hello) or hello.version != VERSION:
            raise ProtocolError(
                f"the tuner's service speaks protocol {VERSION} and expected a hello, got "
                f"{item[:80]!r}; runtime and autotune come from different installations: "
                "reinstall hvd-autotune"
            )
        return hello

    def _take_job(self, hello: Hello) -> None:
        import secrets

        from autotune.service.logkeeper import LogKeeper
        from autotune.tuning.tuner import Tuner

        seed = hello.settings.seed
        seed = secrets.randbits(31) if seed is None else seed
        self._hello = hello
        self._is_oversubscribed = hello.local_size >= available_cores()
        if hello.check is not None:
            self._take_check(hello, hello.check, seed)
            return
        self._tuner = tuner = Tuner(
            settings=hello.settings,
            seed=seed,
            size=hello.size,
            fixed=hello.fixed,
            inert=hello.inert,
            hosts=hello.cross_size,
            oversubscribed=self._is_oversubscribed,
            baseline=hello.start,
        )
        self._standing = lambda: tuner.standing
        self._logs = LogKeeper.open(hello)

    def _take_check(self, hello: Hello, tuned: Mapping[str, Any], seed: int) -> None:
        from autotune.service.logkeeper import LogKeeper
        from autotune.tuning.comparing.replay_check import ReplayCheck

        self._tuner = ReplayCheck(
            settings=hello.settings,
            seed=seed,
            tuned=tuned,
            fixed=hello.fixed,
            baseline=hello.start,
        )
        self._logs = LogKeeper(None, where="")

    def _end(self) -> None:
        """Serve the logs first: a parent that was killed no longer reads."""
        from autotune.tuning.events import Entry, Identified

        to_say: list[Message] = []
        for event in self._tuner.finish():
            if isinstance(event, Entry):
                self._logs.take(event)
            elif not isinstance(event, Identified):
                to_say.append(event)
        self._send_last([*to_say, *self._close_logs()])

    def _send_last(self, messages: Sequence[Message]) -> None:
        """Send what may find nobody who reads it."""
        try:
            for message in messages:
                self._outbox.send(message)
        except EndOfInput:
            pass

    def _close_logs(self) -> list[Line]:
        """Close the logs; return what there is to say about them."""
        self._logs.close()
        lines = [Line(text=text, level="warning") for text in self._logs.complaints()]
        return lines + [Line(text=text) for text in self._logs.notes()]

    def _fail(self, error: Exception) -> None:
        traceback.print_exc()
        text = f"autotune: the tuner failed ({error!r}); training goes on under the best setting"
        self._send_last([Line(text=text, level="error")])
        self._send_last(self._close_logs())

    # ---- the loop -----------------------------------------------------------------------------

    def _serve(self) -> None:
        for text in self._logs.notes():
            self._outbox.send(Line(text=text))
        opening = self._tuner.open()
        self._handle(opening)
        if self._will_plan(opening):
            self._import()
        while True:
            self._take(self._inbox.get())

    def _take(self, item: Item | None) -> None:
        if item is None:
            self._wait()
        elif isinstance(item, Imported):
            self._hold_ends = 0.0
        elif not isinstance(item, bytes):
            self._handle(self._tuner.accept(item))
        elif item.strip():
            self._take_line(item)

    def _will_plan(self, opening: Sequence[Event]) -> bool:
        """Return whether proposals will probably be computed: no result is there, no early end."""
        ends = any(isinstance(event, Done) for event in opening)
        return self._hello.check is None and not ends and not self._logs.has_result

    def _import(self) -> None:
        """Import what planning needs, if that was not done before."""
        if not self._imports.have_begun:
            self._imports.begin()
            self._is_holding = self._is_oversubscribed
            self._hold_ends = time.monotonic() + MOST_HELD_S

    def _take_steps(self, steps: Steps) -> None:
        """Hand steps to the tuner; those made while the service imports are not to be read."""
        self._heard_of_steps = time.monotonic()
        is_held = self._is_holding  # the batch after the end, too: its first step began before it
        self._is_holding = is_held and time.monotonic() < self._hold_ends
        self._handle(self._tuner.observe(steps.records, disturbed=is_held))

    def _take_line(self, line: bytes) -> None:
        try:
            message = decode(line)
        except ProtocolError as error:
            self._outbox.send(Line(text=f"autotune: ignored: {error}", level="warning"))
            return
        if isinstance(message, Steps) and not message.records:
            self._wait(communicates=True)
        elif isinstance(message, Steps):
            self._take_steps(message)
        elif isinstance(message, Signature):
            self._take_signature(message)
            if self._unanswered is not None:
                self._begin(self._unanswered)
        elif isinstance(message, ResultCheck):
            self._handle(self._tuner.check(message))
        elif isinstance(message, Inert):
            self._handle(self._tuner.rule_out(message.reasons))
        elif isinstance(message, Finish):
            raise EndOfInput

    def _take_signature(self, message: Signature) -> None:
        """Keep what steps of a signature communicate, of the newest kinds and of training."""
        unneeded = next((known for known in self._operations if known not in self._parts), None)
        if len(self._operations) >= MOST_SIGNATURES and unneeded is not None:
            del self._operations[unneeded]
        self._operations[message.signature] = message.operations

    def _wait(self, *, communicates: bool = False) -> None:
        """Let the tuner know that time passes although no step has ended."""
        before, self._heard_of_steps = self._heard_of_steps, time.monotonic()
        self._handle(self._tuner.wait(self._heard_of_steps - before, communicates=communicates))

    def _handle(self, events: list[Event]) -> None:
        """Serve the logs and the runtime, in order; then see whether there is work."""
        from autotune.tuning.events import Entry, Identified

        for event in events:
            if isinstance(event, Identified):
                self._begin(event)
            elif isinstance(event, Entry):
                self._logs.take(event)
            else:
                self._outbox.send(event)
        self._logs.keep_best(self._standing())
        for text in self._logs.complaints():
            self._outbox.send(Line(text=text, level="warning"))
        work = self._tuner.work()
        if work is not None:
            self._compute(work)

    def _begin(self, event: Identified) -> None:
        from autotune.storage.contract import Replay

        known, self._parts = self._operations, event.parts
        self._unanswered = None if all(part in known for part in event.parts) else event
        if self._unanswered is not None:
            return
        operations = [operation for part in event.parts for operation in known[part]]
        seed, retune = self._tuner.seed, event.retune
        start = self._logs.start(self._hello, operations, seed=seed, retune=retune)
        for text in self._logs.notes():
            self._outbox.send(Line(text=text))
        if self._hello.check is None and not isinstance(start, Replay):
            self._import()
        self._handle(self._tuner.begin(operations, start))

    def _compute(self, work: Callable[[], Plan]) -> None:
        def compute() -> None:
            try:
                self._inbox.put(work())
            except Exception as error:
                self._inbox.put(error)

        _in_background(compute)


def _in_background(target: Callable[[], None]) -> None:
    threading.Thread(target=target, daemon=True).start()


def _watch(inbox: Inbox) -> None:
    """Make termination, and the parent's death, the end of input; leave Ctrl-C to the job.

    The kernel signals the death of the parent *thread*; a parent that lives on started this process
    from a thread that has ended, and the signal means nothing.
    """

    def end(signum: int, frame: object) -> None:
        if signum != signal.SIGHUP or inbox.parent_is_gone():
            inbox.put(EndOfInput())

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGHUP, end)
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGHUP))
    except (OSError, AttributeError):
        pass  # not Linux: the poll of the parent's process id is enough


def main() -> int:
    """Serve one job over standard input and output; return the exit status.

    The command's arguments are the cores that the ranks of this host may use.
    """
    warnings.simplefilter("ignore")  # nobody reads them here, and the filters are not thread-safe
    for variable in ONE_THREAD:
        os.environ[variable] = "1"
    become_ordinary([int(core) for core in sys.argv[1:]])
    out = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints must not end up between messages
    inbox = Inbox(os.getppid())
    _watch(inbox)
    _in_background(lambda: inbox.read_from(0))
    return Service(inbox, Outbox(out)).run()
