"""Rewrites a page while the job that it is about goes on."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence

from autotune.errors import LogError
from autotune.report.changed import stamp
from autotune.storage.locking import holder
from autotune.storage.paths import default_db_path


def follow(
    paths: Sequence[str],
    rewrite: Callable[[float | None], bool],
    *,
    every_s: float,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Write a page anew whenever its logs have changed, until all of them are finished.

    A job that was seen to hold a log and no longer does has ended, too. The last page follows
    nothing any more; so it is after an interrupt from the keyboard. A log that cannot be read
    (it is being replaced, is locked, or its file system has gone) is tried again.

    Args:
        paths: The logs.
        rewrite: Writes the page; its argument is the number of seconds after which an open page is
            to be read again, or None. Returns whether tuning has finished in all logs; raises
            ``LogError`` where one cannot be read.
        every_s: Seconds between two looks.
        sleep: Waits.
    """
    os.nice(10)
    seen: object = None
    was_held = False
    try:
        while True:
            now = tuple(stamp(path) for path in paths)
            is_held = any(map(is_in_use, paths))
            if now != seen or was_held != is_held:
                with contextlib.suppress(LogError):
                    is_over = rewrite(every_s) or (was_held and not is_held)
                    seen, was_held = now, was_held or is_held
                    if is_over:
                        break
            sleep(every_s)
    except KeyboardInterrupt:
        pass
    rewrite(None)


def is_in_use(path: str) -> bool:
    """Return whether a job on this host (or a file system with locks) writes to the log."""
    real = os.path.realpath(path)
    return holder(real) is not None or holder(default_db_path(real)) is not None
