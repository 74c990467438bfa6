"""What each training step took, how long it waited for communication, and what it reduced.

In host memory all of it is known when the step ends. On a device nothing is known before its queue
has come so far, and nothing is waited for: times are those between events, which are asked whether
they have happened, so steps come out late, in order.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from autotune.ddp import torch_private as private
from autotune.service.protocol import Signature, StepRecord

MOST_PENDING = 64
"""Steps on a device that may be under way; a queue is never so long, so older ones are dropped."""

PRECISE_EVERY = 4
"""Records from one look at what their steps wait for to the next."""
IDLE_STEPS = 4
"""Steps that are one record while nothing is tried: what they are held against takes many more."""
LONG = 2.0
"""A step that takes so many times as long as a usual one is looked at in any case."""

LAST_COMPUTED = 4
"""Parameters, in the module's order, whose gradients tell where the backward computation ends: some
may be unused."""


@dataclass(kw_only=True, slots=True)
class _Kind:
    """Steps that reduce the same; ``seen``: how many there were."""

    content: tuple[tuple[int, int], ...]
    signature: int
    payload_bytes: int
    seen: int = 0


@dataclass(kw_only=True, slots=True)
class _Step:
    """Steps that have ended on the host: ``number`` is the first of ``count``.

    ``exposed_us`` is what each of them waited, as far as is known.
    """

    number: int
    count: int
    epoch: int
    kind: _Kind
    exposed_us: float = 0.0


def content_hash(content: Sequence[tuple[int, int]]) -> int:
    """Return the signature of steps in which module k was reduced n times: (k, n), ascending."""
    return hash((2, *content)) & (2**53 - 1) | 1


class HostSteps:
    """Steps of modules in host memory."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._exposed_us = self._latest_us = self._usual_us = 0.0
        self._unread: list[Any] = []
        self._known: list[tuple[_Step, float]] = []

    def forward(self, ddp: Any, *, is_precise: bool) -> None:
        """Take note of a forward pass that begins and synchronises, in a step that ``end`` ends.

        Args:
            ddp: The module.
            is_precise: As ``end``, for the step in which it begins.
        """
        if any(one is ddp for one in self._unread):
            if is_precise:  # the pass before it was in this step, too
                private.log_backward(ddp)
                self._exposed_us += private.exposed_us(ddp)
        else:
            self._unread.append(ddp)

    def backward_ends(self) -> None:
        """Take note that the optimizer begins."""

    def end(self, step: _Step, *, is_precise: bool) -> None:
        """End a step here, and with it those since the one that was ended before.

        Args:
            step: The steps.
            is_precise: Look up how long the last of them waited; else they waited as long as those
                before, unless they took much longer.
        """
        now = time.perf_counter()
        began, self._began = self._began, now
        time_us = 0.0 if began is None else 1e6 * (now - began)
        is_long = time_us > LONG * self._usual_us * step.count
        if self._unread and (is_precise or is_long):
            for ddp in self._unread:
                private.log_backward(ddp)
                self._exposed_us += private.exposed_us(ddp)
            self._latest_us = self._exposed_us
            self._usual_us = time_us / step.count
        step.exposed_us = self._latest_us
        self._exposed_us = 0.0
        self._unread.clear()
        if began is not None:
            self._known.append((step, time_us))

    def take(self) -> list[tuple[_Step, float]]:
        """Return the steps that are known by now and were not returned yet, with times in us."""
        known, self._known = self._known, []
        return known


class DeviceSteps:
    """Steps of modules on a CUDA device: times between events of the stream that computes."""

    def __init__(self) -> None:
        self._last: Any = None
        self._pending: deque[tuple[_Step, Any, Any, list[Any]]] = deque()
        self._known: list[tuple[_Step, float]] = []
        self._computed: Any = None
        self._waited: Any = None
        self._watched: set[int] = set()
        self._is_marked = True

    def forward(self, ddp: Any, *, is_precise: bool) -> None:
        """Have the end of the backward computation marked."""
        self._is_marked = True
        if id(ddp) not in self._watched:
            self._watched.add(id(ddp))
            trained = (one for one in ddp.module.parameters() if one.requires_grad)
            for parameter in itertools.islice(trained, LAST_COMPUTED):
                parameter.register_post_accumulate_grad_hook(self._mark)

    def _mark(self, parameter: Any) -> None:
        if self._is_marked and not torch.cuda.is_current_stream_capturing():
            self._computed = _event()

    def backward_ends(self) -> None:
        """Mark where the optimizer begins: communication is over there."""
        if self._computed is not None:
            self._waited = _event()

    def end(self, step: _Step, *, is_precise: bool) -> None:
        """See the host's; here it costs nothing to be precise."""
        now = _event()
        if self._last is not None:
            marks = [self._computed, self._waited]
            self._pending.append((step, self._last, now, marks if all(marks) else []))
            if len(self._pending) > MOST_PENDING:
                self._look()
            if len(self._pending) > MOST_PENDING:
                self._pending.popleft()
        self._last, self._computed, self._waited = now, None, None
        self._is_marked = False

    def take(self) -> list[tuple[_Step, float]]:
        """See the host's: what the device has come past."""
        self._look()
        known, self._known = self._known, []
        return known

    def _look(self) -> None:
        while self._pending and self._pending[0][2].query():
            step, began, ended, marks = self._pending.popleft()
            if marks:
                step.exposed_us = max(0.0, 1000 * marks[0].elapsed_time(marks[1]))
            self._known.append((step, 1000 * began.elapsed_time(ended)))


def _event() -> Any:
    cuda: Any = torch.cuda
    event = cuda.Event(enable_timing=True)
    event.record()
    return event


class Steps:
    """The steps of a job, as the tuner takes them.

    Args:
        is_device: The modules are on a CUDA device.
    """

    def __init__(self, *, is_device: bool) -> None:
        self._clock: HostSteps | DeviceSteps = DeviceSteps() if is_device else HostSteps()
        self._operation = "cuda allreduce" if is_device else "allreduce"
        self._sizes: list[list[int]] = []
        self._counts: dict[int, int] = {}
        self._latest: tuple[dict[int, int], _Kind] | None = None
        self._kind: _Kind | None = None
        self._kinds: dict[tuple[tuple[int, int], ...], _Kind] = {}
        self._news: list[Signature] = []
        self._number = self._records = self._passed = 0
        self._epoch = 0
        self._is_read = self._is_precise = self._is_uniform = True

    def add_module(self, ddp: Any) -> int:
        """Know of a module, from its constructor on; return its index."""
        parameters = [one for one in ddp.module.parameters() if one.requires_grad]
        self._sizes.append([one.numel() * one.element_size() for one in reversed(parameters)])
        return len(self._sizes) - 1

    @property
    def payload_bytes(self) -> int:
        """Bytes of all modules' gradients."""
        return sum(map(sum, self._sizes))

    def forward(self, index: int, ddp: Any) -> None:
        """Take note of a forward pass that begins and synchronises."""
        self._counts[index] = self._counts.get(index, 0) + 1
        if self._is_read:
            self._clock.forward(ddp, is_precise=self._is_precise)

    def backward_ends(self) -> None:
        """Take note that the optimizer that ends steps begins."""
        self._clock.backward_ends()

    def end(self, epoch: int, *, is_idle: bool = False) -> bool:
        """End a step; return whether a record has ended with it.

        Args:
            epoch: Of the setting that was in force during the whole step.
            is_idle: Nothing is being tried: several steps are one record.
        """
        if self._latest is not None and self._latest[0] == self._counts:
            self._counts.clear()
        else:
            self._is_uniform &= not self._passed
            self._latest = self._counts, self._kind_of(self._counts)
            self._counts = {}
        kind = self._latest[1]
        kind.seen += 1
        if kind.seen == 2:
            self._news.append(self._signature(kind))
        if not self._passed:
            self._epoch, self._kind = epoch, kind
        self._number += 1
        is_merged = is_idle and self._is_uniform
        has_ended = not is_merged or self._passed == IDLE_STEPS - 1
        if has_ended:
            self._end_record(epoch, kind)
        else:
            self._passed += 1
        self._is_read = not is_merged or self._passed == IDLE_STEPS - 1
        self._is_precise = self._is_read and self._records % PRECISE_EVERY == 0
        return has_ended

    def _end_record(self, epoch: int, kind: _Kind) -> None:
        """End a record; where its steps differ, it is one that says nothing of a setting."""
        is_one = epoch == self._epoch and kind is self._kind
        step = _Step(
            number=self._number - self._passed - 1,
            count=self._passed + 1,
            epoch=epoch if is_one else -1,
            kind=kind,
        )
        self._clock.end(step, is_precise=self._is_precise)
        self._records += 1
        self._passed = 0

    def take(self) -> tuple[list[StepRecord], list[Signature]]:
        """Return the steps that are known and not returned yet, and what new kinds reduce."""
        news, self._news = self._news, []
        return [self._record(step, time_us) for step, time_us in self._clock.take()], news

    def _record(self, step: _Step, time_us: float) -> StepRecord:
        return StepRecord(
            step=step.number,
            count=step.count,
            duration_us=time_us,
            payload_bytes=step.count * step.kind.payload_bytes,
            exposed_us=min(step.count * step.exposed_us, time_us),
            epoch=step.epoch,
            signature=step.kind.signature,
        )

    def _kind_of(self, counts: Mapping[int, int]) -> _Kind:
        content = tuple(sorted(counts.items()))
        kind = self._kinds.get(content)
        if kind is None:
            payload = sum(count * sum(self._sizes[index]) for index, count in content)
            kind = _Kind(content=content, signature=content_hash(content), payload_bytes=payload)
            self._kinds[content] = kind
        return kind

    def _signature(self, kind: _Kind) -> Signature:
        """Return what a kind of step reduces; it is told when it has come twice."""
        sizes = [size for index, count in kind.content for size in count * self._sizes[index]]
        operations = tuple((self._operation, size) for size in sizes)
        return Signature(signature=kind.signature, operations=operations)
