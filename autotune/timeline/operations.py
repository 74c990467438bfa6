"""Fused operations: which tensors moved together, through what, and what ran at the same time.

The engine performs one fused operation at a time and writes the same activity for each of its
tensors, one after the other: begins of one activity that no end interrupts are one operation.
"""

from __future__ import annotations

import math
import re
from functools import cache
from typing import Any

from autotune.timeline.phases import backend_of
from autotune.timeline.report import BackendSums, TensorSums, TimelineReport

_WIDTH = {"bool": 1, "uint8": 1, "int8": 1, "bfloat16": 2, "half": 2, "float": 4, "double": 8}
_DIGITS = re.compile(r"(\d+)$")
_DIMENSION = re.compile(r"\d{1,18}")


@cache
def _width(dtype: str) -> int:
    digits = _DIGITS.search(dtype)
    if dtype in _WIDTH or digits is None:
        return _WIDTH.get(dtype, 0)
    return int(digits[1][:3]) // 8


@cache
def payload_bytes(dtype: str, shape: str) -> int:
    """Return the bytes of a tensor from what its end event says, e.g. "float32" and "[2, 3]"."""
    return math.prod(int(text) for text in _DIMENSION.findall(shape)) * _width(dtype)


class OperationSums:
    """Adds up operations for a report."""

    def __init__(self, report: TimelineReport) -> None:
        self._report = report
        self._under_way = 0  # tensors inside an operation
        self._active: dict[str, int] = {}  # transfers under way: tensors in each
        self._group: str | None = None  # transfer whose begins are still coming
        self._since = 0.0
        self._fused_under_way = 0

    def time_passes(self, time: float, job: list[tuple[str, Any]]) -> None:
        """Take note that ``time`` passed with things as they are."""
        report = self._report
        if self._under_way:
            report.operation_union_us += time
            report.operation_sum_us += time * max(1, self._fused_under_way)
            if report.compute_overlap_us is not None and any(n == "BACKWARD" for n, _ in job):
                report.compute_overlap_us += time

    def begins_operation(self, now: float) -> None:
        """A tensor's operation begins."""
        self._under_way += 1

    def begins_activity(self, name: str, now: float, used: list[str]) -> None:
        """An activity begins for a tensor, whose operation has ``used`` these backends so far."""
        backend = backend_of(name)
        if not backend:
            return
        sums = self._report.backends.setdefault(backend, BackendSums())
        if self._group != name:
            sums.operations += 1
            self._report.fused.operations += not used  # a hierarchical one moves several times
            self._fused_under_way += 1
            self._group = name
        if not self._active.get(name):
            self._since = now
        self._active[name] = self._active.get(name, 0) + 1
        sums.tensors += 1
        self._report.fused.tensors += not used
        if backend not in used:
            used.append(backend)

    def ends_activity(self, name: str, now: float) -> None:
        """An activity ends for a tensor."""
        backend = backend_of(name)
        if not backend or not self._active.get(name):
            return
        self._group = None
        self._active[name] -= 1
        if self._active[name] == 0:
            self._report.backends[backend].transfer_us += now - self._since
            self._report.fused.transfer_us += now - self._since
            self._fused_under_way = max(0, self._fused_under_way - 1)

    def ends_operation(self, tensor: TensorSums, args: Any, used: list[str]) -> None:
        """A tensor's operation ends; ``args`` say what it was, ``used`` what moved it."""
        self._under_way = max(0, self._under_way - 1)
        tensor.count += 1
        if not isinstance(args, dict):
            return
        dtype, shape = args.get("dtype"), args.get("shape")
        if not isinstance(dtype, str) or not isinstance(shape, str) or len(shape) > 400:
            return
        moved = payload_bytes(dtype, shape)
        tensor.payload_bytes += moved
        self._report.fused.payload_bytes += moved
        for backend in used:
            self._report.backends[backend].payload_bytes += moved

    def flush(self) -> None:
        """The file is over."""
        self._active.clear()
