"""A thread in one call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def in_thread(
    target: Callable[..., Any],
    args: tuple[Any, ...] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Start ``target(*args)`` in a thread and return the thread. **Local.**

    Args:
        target: What to call.
        args: Its positional arguments; a tuple.
        name: Name of the thread.
        daemon: The thread does not keep the process alive.
        silent: Exceptions of ``target`` end the thread without a word.

    Raises:
        ValueError: ``args`` is not a tuple.
    """
    if not isinstance(args, tuple):
        raise ValueError(f"in_thread: args must be a tuple, got {args!r}")

    def quietly(*arguments: Any) -> None:
        try:
            target(*arguments)
        except Exception:
            return

    thread = threading.Thread(
        target=quietly if silent else target, args=args, name=name, daemon=daemon
    )
    thread.start()
    return thread
