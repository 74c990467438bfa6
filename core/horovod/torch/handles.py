"""Operations in flight, by the integer handle that the script holds.

The engine holds no Python object: this table keeps input and output alive until the operation is
complete; on a GPU torch's allocator reuses memory in the order of the stream that waited. An
operation that nobody will wait for any more (its wait was interrupted) is abandoned and reaped when
another one is added.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from horovod import _engine
from horovod.common.exceptions import HorovodInternalError
from horovod.torch import cuda
from horovod.tuning import autotuning


class Operation:
    """One operation of the script: one or several operations of the engine.

    Args:
        engine: The engine that has it.
        handles: The engine's handles, consecutive numbers.
        kept: What must stay alive until it is complete: usually (input, output).
        finish: Returns the result once all of it is complete.
        in_engine: The engine holds the result, which ``finish`` takes.
        device: GPU of its tensors; -1: CPU.
        stream: The one that was current when it was started.
    """

    __slots__ = ("device", "engine", "finish", "handles", "in_engine", "kept", "stream")

    def __init__(
        self,
        engine: _engine.Engine,
        handles: Sequence[int],
        kept: tuple[Any, ...],
        finish: Callable[[Operation], Any],
        in_engine: bool = True,
        device: int = cuda.HOST,
        stream: int = 0,
    ) -> None:
        self.device = device
        self.stream = stream
        self.engine = engine
        self.in_engine = in_engine
        self.handles = handles
        self.kept = kept
        self.finish = finish

    def poll(self) -> bool:
        """**Local.** Return whether all of it is complete or failed."""
        return all(self.engine.poll(handle) for handle in self.handles)

    def wait(self) -> None:
        """**Local.** Return when all of it is complete.

        On a GPU: when all of it is in the engine's stream. What the current stream does from now on
        comes after it.

        Raises:
            HorovodInternalError: Some of it failed (the first error; the rest is complete, too).
        """
        first: _engine.EngineError | None = None
        stream = 0
        if self.device >= 0:
            stream = cuda.current_stream(self.device)
            if stream != self.stream:
                cuda.keep_until_done(self.engine, self.device, self.kept)
        if self.in_engine:
            for handle in self.handles:
                try:
                    self.engine.wait(handle)
                except _engine.EngineError as error:
                    first = first or error
        else:
            try:
                if self.handles:
                    self.engine.finish_all(self.handles[0], len(self.handles), stream)
            except _engine.EngineError as error:
                first = error
            self.handles = ()  # not when the wait was interrupted
        if first is not None:
            keep_for_messages(self.kept)
            self.release()
            raise HorovodInternalError(str(first)) from None

    def release(self) -> None:
        """**Local.** Let the engine forget its handles, and let go of the tensors."""
        for handle in self.handles:
            self.engine.release(handle)
        self.handles = ()
        self.kept = ()


_operations: dict[int, Operation] = {}
_ended: dict[int, Operation] = {}
"""Those that nobody had waited for when the engine ended: it still says how they have ended."""
_abandoned: list[Operation] = []
_numbers = itertools.count()
_kept_for_ever: list[Any] = []


def add(operation: Operation) -> int:
    """**Local.** Take ``operation`` into the table and return its handle."""
    handle = next(_numbers)
    _operations[handle] = operation
    if _abandoned:
        _reap()
    return handle


def abandon(operation: Operation) -> None:
    """**Local.** Keep the memory of an operation that nobody waits for until it is complete."""
    _abandoned.append(operation)


def drop(handle: int) -> None:
    """**Local.** Abandon the operation of ``handle``: nobody wants its result."""
    operation = _operations.pop(handle, None)
    if operation is not None:
        abandon(operation)


def poll(handle: int) -> bool:
    """**Local.** Return whether the operation of ``handle`` is complete or failed.

    Raises:
        ValueError: No such operation: the handle was never given out or is synchronised already.
    """
    operation = _operations.get(handle) or _ended.get(handle)
    if operation is None:
        raise ValueError(f"poll: no operation has the handle {handle}; synchronised already?")
    return operation.poll()


def synchronize(handle: int) -> Any:
    """**Local.** Wait for the operation of ``handle`` and return its result; None if unknown.

    Raises:
        HorovodInternalError: It failed on all ranks, a rank died or the engine was shut down.
    """
    operation = _operations.pop(handle, None) or _ended.pop(handle, None)
    if operation is None:
        return None
    try:
        operation.wait()
    except HorovodInternalError:
        raise
    except BaseException:
        abandon(operation)
        raise
    try:
        return operation.finish(operation)
    except _engine.EngineError as error:
        raise HorovodInternalError(str(error)) from None
    finally:
        operation.release()
        autotuning.tick()


def clear() -> None:
    """**Local.** Begin anew, after the engine was shut down; handles last until the next time."""
    for operation in [*_operations.values(), *_abandoned]:
        keep_for_messages(operation.kept)
    _ended.clear()
    _ended.update(_operations)
    _operations.clear()
    _abandoned.clear()


def keep_for_messages(kept: Any) -> None:
    """**Local.** Keep ``kept``, of operations that failed, where MPI may still read from it.

    A message that the engine could not take back is delivered whenever the other rank goes on. It
    never writes here: the engine receives into memory of its own.
    """
    if _engine.messages_were_left_behind():
        _kept_for_ever.append(kept)


def _reap() -> None:
    for operation in [each for each in _abandoned if each.poll()]:
        _abandoned.remove(operation)
        operation.release()
