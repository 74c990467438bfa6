"""Notices that a log is there or has changed, without reading it: sizes and times of its files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from autotune.storage.paths import default_db_path

Stamp = tuple[object, ...]


def stamp(path: str) -> Stamp:
    """Return what changes whenever a job writes to the log at ``path``.

    That is about the CSV and its database, the database's journals, and the lock beside either; of
    a folder about all databases in it.
    """
    if os.path.isdir(path):
        try:
            names = [os.path.join(path, name) for name in sorted(os.listdir(path))]
        except OSError:  # its file system has just gone
            return ()
        return tuple(_of_file(name) for name in names if ".db" in name)
    database = default_db_path(os.path.realpath(path))
    ends = ("", "-wal", "-journal", ".lock")
    names = [path + end for end in ends] + [database + end for end in ends]
    return tuple(_of_file(name) for name in names)


def _of_file(name: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(name)
    except (OSError, ValueError):
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def wait_for(
    path: str, say: Callable[[str], None], *, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Wait until there is a log at ``path``, as long as the folder that it is to be in exists.

    Args:
        path: The log.
        say: Is told, once, that this waits.
        sleep: Waits.
    """
    is_said = False
    while not os.path.lexists(path) and os.path.isdir(os.path.dirname(os.path.abspath(path))):
        if not is_said:
            say(f"{path}: no such file yet: waits until a job begins it; Ctrl-C ends this")
        is_said = True
        sleep(1.0)
