"""Notices that a log has changed, without reading it: sizes and times of its files."""

from __future__ import annotations

import os

from autotune.storage.paths import default_db_path

Stamp = tuple[object, ...]


def stamp(path: str) -> Stamp:
    """Return what changes whenever a job writes to the log at ``path``.

    That is about the CSV and its database, the database's journals, and the lock beside either; of
    a folder about all databases in it.
    """
    if os.path.isdir(path):
        names = [os.path.join(path, name) for name in sorted(os.listdir(path))]
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
