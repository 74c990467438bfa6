"""Runs a function again and again while ranks are lost and come back: ``hvd.elastic.run``.

What ends the function decides how it goes on:

=========================  ======================================================================
HorovodInternalError       the last commit is restored, the ranks meet anew, rank 0's state is sent
HostsUpdatedInterrupt      the ranks meet anew; rank 0's state is sent unless all have it
SystemExit of SIGTERM      rank 0 leaves the last commit in a file, and all ranks end
a return, another error    the same for the caller
=========================  ======================================================================

Without a driver (``horovod.common.rounds``) the ranks of a job cannot change: a job that has lost
one ends, with the exit code of ``termination``.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import secrets
import time
from collections.abc import Callable
from typing import Any, TypeVar

from horovod.common import basics, rounds
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.elastic import agreement
from horovod.elastic.checkpoint import ENV, Checkpoint, CheckpointError, Head
from horovod.elastic.notifications import notification_manager
from horovod.elastic.state import State
from horovod.elastic.termination import EXIT_CODE, Terminated, termination

logger = logging.getLogger("horovod")

Result = TypeVar("Result")

Path = str | os.PathLike[str]

WRITING_SECONDS = 20.0
"""Where a rank was lost, each of the others in turn has this long to write the file."""
POLL_SECONDS = 0.1


def run_fn(
    func: Callable[..., Result], reset: Callable[[], Any], checkpoint: Path | None = None
) -> Callable[..., Result]:
    """Return ``func(state, ...)`` such that it survives changes of the ranks.

    Args:
        func: Its first argument is a ``State``.
        reset: **Collective.** Ends the runtime and starts it again, with the ranks that there are.
        checkpoint: File for the last commit of a job that has to end, and from which the next job
            goes on; None: what HOROVOD_ELASTIC_CHECKPOINT says, if anything.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Result:
        name = getattr(func, "__name__", type(func).__name__)
        loop = _Loop(state, reset, _checkpoint(checkpoint), name)
        return loop.run(functools.partial(func, state, *args, **kwargs))

    return wrapper


def _checkpoint(given: Path | None) -> Checkpoint | None:
    path = given or os.environ.get(ENV, "").strip()
    return Checkpoint(path) if path else None


class _Loop:
    """One call of an elastic function.

    Args:
        state: What is kept.
        reset: As of ``run_fn``.
        checkpoint: The file; None: none is wanted.
        function: Name of the function.
    """

    def __init__(
        self,
        state: State,
        reset: Callable[[], Any],
        checkpoint: Checkpoint | None,
        function: str,
    ) -> None:
        self._state = state
        self._reset = reset
        self._checkpoint = checkpoint
        self._function = function
        self._job = secrets.token_hex(8)
        self._has_begun = False
        self._failure: tuple[str, int] = ("", -1)
        """(what has failed last, number of the last commit by then)"""
        self._rank, self._size = 0, 1

    def run(self, call: Callable[[], Result]) -> Result:
        """**Collective** in spirit. Return what ``call`` returns when it comes to its end."""
        notification_manager.init()
        notification_manager.register_listener(self._state)
        try:
            with termination.watched():
                return self._run(call)
        finally:
            notification_manager.remove_listener(self._state)

    def _run(self, call: Callable[[], Result]) -> Result:
        sync, restore = True, False
        while True:
            try:
                if self._has_begun:
                    self._begin_anew(restore)
                self._meet(sync)
                with termination.asks(self._why_end_at_once):
                    result = call()
            except HorovodInternalError as error:
                self._judge(error)
                sync = restore = True
            except HostsUpdatedInterrupt as interrupt:
                sync, restore = not interrupt.skip_sync, False
            except Terminated:
                self._end_terminated()
                raise
            else:
                self._put_away()
                return result

    def _begin_anew(self, restore: bool) -> None:
        """**Collective.** Meet again, of whatever ranks there are."""
        with termination.asks(Terminated):  # the other ranks may not come
            self._reset()
        if restore:
            self._state.restore()
        self._state.on_reset()
        notification_manager.repeat(self._state)

    def _meet(self, sync: bool) -> None:
        """**Collective.** Take over rank 0's state where a rank needs it: a new one does."""
        if basics.is_initialized():
            self._rank, self._size = basics.rank(), basics.size()
        error = ""
        if not self._has_begun and self._rank == 0:
            error = self._read()
        self._has_begun = True
        commit = self._state._commit_number
        own = {
            "sync": sync or rounds.must_sync(),
            "error": error,
            "job": self._job,
            "commit": commit,
        }
        said = agreement.tell_all(own)
        if said[0]["error"]:
            raise CheckpointError(said[0]["error"])
        self._job, self._state._commit_number = said[0]["job"], said[0]["commit"]
        if any(each["sync"] for each in said):
            self._state.sync()
        rounds.has_state()

    def _judge(self, error: HorovodInternalError) -> None:
        """Return where the loop may go on after ``error``; end where it cannot."""
        is_lost = _has_lost_a_rank()
        if not rounds.is_elastic() and self._size > 1:
            if is_lost:
                self._end_lost(error)
            raise error
        failure = str(error), self._state._commit_number
        if not is_lost and not _SHUT_DOWN.search(failure[0]) and failure == self._failure:
            raise error  # all ranks are there, and they will not get any further
        self._failure = failure

    def _why_end_at_once(self) -> BaseException | None:
        """Return what SIGTERM has to raise at once: no commit will come where a rank is lost.

        An mpirun that ends what a lost rank has left behind does not wait for long.
        """
        if rounds.is_elastic() or self._size == 1 or not _has_lost_a_rank():
            return None
        return HorovodInternalError("the job was told to end after a rank was lost")

    # --- the file ------------------------------------------------------------------------------

    def _read(self) -> str:
        """**Rank 0 only.** Go on from what an earlier job has left; return what is wrong."""
        if self._checkpoint is None:
            return ""
        try:
            self._checkpoint.expect_place()
            self._state.saved_content()  # or it is known too late that it cannot be written
            found = self._checkpoint.read(self._function)
            if found is None:
                return ""
            head, content = found
            try:
                self._state.load_content(content)
            except (ValueError, KeyError, TypeError, RuntimeError) as error:
                return (
                    f"{ENV}: {self._checkpoint.path} does not fit this script: {error}; it is left "
                    "as it is: move it away to begin anew, or name another file"
                )
        except (CheckpointError, NotImplementedError, ValueError) as error:
            return str(error)
        self._state._commit_number = head.commit
        logger.warning(
            "elastic: goes on from commit %d of %s, written %s by a job of %d ranks",
            head.commit,
            self._checkpoint.path,
            head.written,
            head.ranks,
        )
        return ""

    def _write(self) -> str:
        """**Local.** Leave the last commit in the file; return a sentence about it."""
        commit = self._state._commit_number
        if self._checkpoint is None:
            return f"commit {commit} is lost with this job: {ENV}=FILE would have kept it"
        head = Head(
            job=self._job,
            commit=commit,
            function=self._function,
            ranks=self._size,
            written=time.strftime("%Y-%m-%d %H:%M:%S"),
        )
        try:
            self._checkpoint.write(head, self._state.saved_content())
        except (OSError, ValueError) as error:
            return f"commit {commit} could not be written to {self._checkpoint.path}: {error}"
        return f"commit {commit} is in {self._checkpoint.path}"

    def _put_away(self) -> None:
        """Rename the file when the function has come to its end."""
        if self._checkpoint is None or self._rank != 0:
            return
        done = self._checkpoint.put_away()
        if done is not None:
            logger.warning("elastic: %s has ended; its file is %s now", self._function, done)

    # --- the end -------------------------------------------------------------------------------

    def _end_terminated(self) -> None:
        """**Collective**, unless the ranks are apart. Leave the last commit, and wait for that."""
        lost = "" if basics.is_initialized() else self._failure[0]
        is_first = self._rank == _survivors(lost, self._size)[0]
        text = self._write() if is_first else ""
        if basics.is_initialized():
            try:
                agreement.tell_all({"written": text})  # or a launcher ends rank 0 meanwhile
            except HorovodInternalError:
                pass
        if text:
            logger.warning("elastic: told to end (SIGTERM): %s; exit code %d", text, EXIT_CODE)

    def _end_lost(self, error: HorovodInternalError) -> None:
        """**Local.** Leave the last commit, once in the job, and end this rank.

        Raises:
            SystemExit: Always.
        """
        place = _survivors(str(error), self._size).index(self._rank)
        if place == 0 or not self._is_written(WRITING_SECONDS * place):
            text = self._write()
            logger.warning(
                "elastic: %s; without a driver (horovodrun --min-np) no other rank can come: %s; "
                "exit code %d",
                str(error).partition(";")[0],
                text,
                EXIT_CODE,
            )
        basics.end_without_others(EXIT_CODE)
        raise SystemExit(EXIT_CODE) from error

    def _is_written(self, seconds: float) -> bool:
        """Wait for the file of another rank; our commit may be one ahead of its."""
        deadline = time.monotonic() + seconds
        while self._checkpoint is not None and time.monotonic() < deadline:
            if self._checkpoint.has(self._job, self._state._commit_number - 1):
                return True
            time.sleep(POLL_SECONDS)
        return self._checkpoint is None


def _has_lost_a_rank() -> bool:
    return basics.is_initialized() and basics.engine().failed


_SHUT_DOWN = re.compile("shut down")
_RANK = re.compile(r"\brank (\d+)")
_SEEN = re.compile(r"\(seen (?:on|by) ")


def _survivors(error: str, size: int) -> list[int]:
    """Return the ranks that are left, those that ``error``, of a failed engine, names last."""
    named = {int(number) for number in _RANK.findall(_SEEN.split(error)[0])}
    return sorted(range(size), key=lambda rank: (rank in named, rank))
