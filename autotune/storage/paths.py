"""Where logs may lie: names, checks that can be made before a job starts, kinds of file system."""

from __future__ import annotations

import ctypes
import os
import re
import stat

from autotune.errors import LogError

_LOCAL_FILE_SYSTEMS = {
    0xEF53: "ext",
    0x58465342: "xfs",
    0x9123683E: "btrfs",
    0x01021994: "tmpfs",
    0x858458F6: "ramfs",
    0x794C7630: "overlay",
    0x2FC12FC1: "zfs",
    0xF2F52010: "f2fs",
    0xCA451A4E: "bcachefs",
    0x3153464A: "jfs",
}


def default_db_path(csv_path: str) -> str:
    """Return the SQLite file that belongs to a CSV: ``log.csv`` and ``log.csv.1`` -> ``log.db``."""
    home = re.sub(r"(?<=.)\.\d+$", "", csv_path)
    stem, suffix = os.path.splitext(home)
    return (stem if suffix.lower() in {".csv", ".log", ".txt"} else home) + ".db"


def is_local(folder: str) -> bool:
    """Return whether ``folder`` lies on a file system that is known to be local.

    SQLite's WAL needs memory shared between all its users, which network file systems lack. What is
    not known (NFS, Lustre, GPFS, FUSE ...) counts as network: the rollback journal works
    everywhere.
    """
    return file_system_magic(folder) in _LOCAL_FILE_SYSTEMS


def file_system_magic(folder: str) -> int | None:
    """Return ``f_type`` of statfs(2) for ``folder``, or None where the system does not say."""
    buffer = ctypes.create_string_buffer(1024)
    try:
        if ctypes.CDLL(None).statfs(os.fsencode(folder), buffer) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return ctypes.c_long.from_buffer(buffer).value & 0xFFFFFFFF


def resolve(path: str, what: str) -> str:
    """Return ``path`` absolute and without links, checked as a file to write.

    Args:
        path: What the user gave.
        what: The environment variable, for the message.

    Raises:
        LogError: Missing folder, not a regular file, or not writable.
    """
    try:
        real = os.path.realpath(os.path.expanduser(path))
        folder = os.path.dirname(real)
        if not os.path.isdir(folder):
            raise LogError(
                f"{what}={path}: folder {folder} does not exist; create it or change {what}"
            )
        mode = _mode(real)
    except (OSError, ValueError) as error:
        raise LogError(f"{what}={path!r}: {error}; change {what}") from None
    if mode is not None and stat.S_ISDIR(mode):
        raise LogError(f"{what}={path}: is a directory; name a file, such as {real}/log.csv")
    if mode is not None and not stat.S_ISREG(mode):
        raise LogError(f"{what}={path}: is not a regular file; change {what}")
    if not os.access(folder if mode is None else real, os.W_OK):
        raise LogError(f"{what}={path}: not writable by this user; change its mode or {what}")
    return real


def resolve_folder(path: str, what: str) -> str:
    """Return ``path`` absolute, checked as a folder in which files can be made.

    Raises:
        LogError: Missing or not writable.
    """
    real = os.path.realpath(os.path.expanduser(path))
    if not os.path.isdir(real):
        raise LogError(f"{what}={path}: folder does not exist; create it or change {what}")
    if not os.access(real, os.W_OK | os.X_OK):
        raise LogError(
            f"{what}={path}: folder not writable by this user; change its mode or {what}"
        )
    return real


def _mode(path: str) -> int | None:
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None
