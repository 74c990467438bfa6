"""What this process tells the tuner library that NCCL has loaded (``csrc/nccl_tuner/tuner.h``)."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.tables.nccl import LEAST_BYTES

HOLD_MS = 120_000
"""How long a held operation waits. Longer than ranks wait for each other, so that none goes on
before they have told each other."""


class _Choice(ctypes.Structure):
    _fields_ = (
        ("algorithm", ctypes.c_int32),
        ("protocol", ctypes.c_int32),
        ("channels", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("least_bytes", ctypes.c_int64),
    )


class _Seen(ctypes.Structure):
    _fields_ = (
        ("interface", ctypes.c_int32),
        ("communicators", ctypes.c_int32),
        ("operations", ctypes.c_int64),
        ("chosen", ctypes.c_int64),
        ("largest_bytes", ctypes.c_int64),
        ("largest_us", ctypes.c_double),
    )


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the library has seen of all communicators of this process.

    Attributes:
        interface: Version of NCCL's interface by which it was loaded; 0: it was not.
        communicators: That were made.
        operations: That NCCL has asked about.
        chosen: Those of them that were told something.
        largest_bytes, largest_us: Of the operation that NCCL expects to take longest: its bytes
            and, by NCCL's own model, microseconds.
    """

    interface: int
    communicators: int
    operations: int
    chosen: int
    largest_bytes: int
    largest_us: float


class Plugin:
    """The library, which NCCL may or may not have loaded.

    Args:
        path: Its file, the same that NCCL was told.

    Raises:
        OSError: It cannot be loaded.
    """

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self._library.autotune_nccl_hold.restype = ctypes.c_uint64
        self._library.autotune_nccl_hold.argtypes = (ctypes.c_int32, ctypes.c_int32)
        self._library.autotune_nccl_release.restype = ctypes.c_int32
        self._library.autotune_nccl_release.argtypes = (ctypes.POINTER(_Choice),)
        self._library.autotune_nccl_seen.argtypes = (ctypes.POINTER(_Seen),)

    def hold(self, ranks: int, patience_ms: int = HOLD_MS) -> int:
        """**Local.** Hold the next operation of the communicators of so many ranks.

        Returns:
            A number of 64 bits that is the same on all ranks exactly where these have as many of
            them, which have come as far; 0: there is none.
        """
        return int(self._library.autotune_nccl_hold(ranks, patience_ms))

    def release(self, values: Mapping[str, Any] | None) -> bool:
        """**Local.** Let them go on.

        Args:
            values: {parameter: value} that they use from here on, or more; None: as before.

        Returns:
            False where an operation had waited too long: then all go on as before.
        """
        choice = None
        if values is not None:
            names = ("nccl_algorithm", "nccl_protocol", "nccl_channels")
            numbers = [int(values.get(name, 0)) for name in names]
            choice = ctypes.byref(_Choice(*numbers, 0, LEAST_BYTES))
        return bool(self._library.autotune_nccl_release(choice))

    def seen(self) -> Seen:
        """**Local.** Return what it has seen so far."""
        found = _Seen()
        self._library.autotune_nccl_seen(ctypes.byref(found))
        return Seen(**{name: getattr(found, name) for name, _ in _Seen._fields_})
