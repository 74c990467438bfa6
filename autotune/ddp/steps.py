"""What each training step took, how long it waited for communication, and what it reduced.

In host memory all of it is known when the step ends. On a device nothing is known before its queue
has come so far, and nothing is waited for: times are those between events, which are asked whether
they have happened, so steps come out late, in order.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
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
    """Steps that reduce the same; ``seen``: how many there were, as far as that is of interest."""

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

    is_precise = True
    """Look up how long the step under way waits; else it is taken to wait as long as those before,
    unless it takes much longer."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._exposed_us = self._latest_us = self._usual_us = 0.0
        self._unread: list[Any] = []
        self._known: list[tuple[_Step, float]] = []

    def forward(self, ddp: Any) -> None:
        """Take note of a forward pass that begins and synchronises, in a step that ``end`` ends."""
        if ddp not in self._unread:
            self._unread.append(ddp)
        elif self.is_precise:  # the pass before it was in this step, too
            private.log_backward(ddp)
            self._exposed_us += private.exposed_us(ddp)

    def backward_ends(self) -> None:
        """Take note that the optimizer begins."""

    def end(self, step: _Step) -> bool:
        """End a step here, and with it those since the one that was ended before.

        Returns:
            Whether they may have taken much longer than usual ones.
        """
        now = time.perf_counter()
        began, self._began = self._began, now
        time_us = 0.0 if began is None else 1e6 * (now - began)
        is_long = time_us > LONG * self._usual_us * step.count
        if self._unread and (self.is_precise or is_long):
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
        return is_long

    def take(self) -> list[tuple[_Step, float]]:
        """Return the steps that are known by now and were not returned yet, with times in us."""
        known, self._known = self._known, []
        return known


class DeviceSteps:
    """Steps of modules on a CUDA device: times between events of the stream that computes."""

    is_precise = True
    """See the host's; here it costs nothing."""

    def __init__(self) -> None:
        self._last: Any = None
        self._pending: deque[tuple[_Step, Any, Any, list[Any]]] = deque()
        self._known: list[tuple[_Step, float]] = []
        self._computed: Any = None
        self._waited: Any = None
        self._watched: set[int] = set()
        self._is_marked = True

    def forward(self, ddp: Any) -> None:
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

    def end(self, step: _Step) -> bool:
        """See the host's: not known before the device has come so far."""
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
        return True

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

    Attributes:
        counts: How often each module was reduced since the latest record; whoever sees a forward
            pass that synchronises adds 1.
        is_uniform: Steps that were one record have reduced the same, so far.
        forward: Takes a module whose forward pass synchronises and begins, in the last step of a
            record.
        backward_ends: Called where the optimizer that ends steps begins.
    """

    def __init__(self, *, is_device: bool) -> None:
        self.counts: list[int] = []
        self.is_uniform = True
        self._clock: HostSteps | DeviceSteps = DeviceSteps() if is_device else HostSteps()
        self.forward: Callable[[Any], None] = self._clock.forward
        self.backward_ends: Callable[[], None] = self._clock.backward_ends
        self._operation = "cuda allreduce" if is_device else "allreduce"
        self._sizes: list[list[int]] = []
        self._nothing: list[int] = []
        self._usual: list[int] = []
        self._kind: _Kind | None = None
        self._kinds: dict[tuple[tuple[int, int], ...], _Kind] = {}
        self._news: list[Signature] = []
        self._number = self._records = 0

    def add_module(self, ddp: Any) -> int:
        """Know of a module, from its constructor on; return its index in ``counts``."""
        parameters = [one for one in ddp.module.parameters() if one.requires_grad]
        self._sizes.append([one.numel() * one.element_size() for one in reversed(parameters)])
        for counts in (self.counts, self._nothing, self._usual):
            counts.append(0)
        return len(self._sizes) - 1

    @property
    def payload_bytes(self) -> int:
        """Bytes of all modules' gradients."""
        return sum(map(sum, self._sizes))

    def end(self, epoch: int, *, count: int = 1) -> bool:
        """End steps that are one record; where they differ, it says nothing of a setting.

        Args:
            epoch: Of the setting that was in force during all of them.
            count: How many there are.

        Returns:
            Whether they may have taken much longer than usual ones.
        """
        usual = self._usual if count == 1 else [count * one for one in self._usual]
        if self._kind is None or self.counts != usual:
            if count > 1:
                self.is_uniform, epoch = False, -1
            else:
                self._usual = self.counts[:]
                self._kind = self._kind_of(self._usual)
        self.counts[:] = self._nothing
        kind = self._kind
        assert kind is not None
        if kind.seen < 2:
            kind.seen += 1
            if kind.seen == 2:
                self._news.append(self._signature(kind))
        step = _Step(number=self._number, count=count, epoch=epoch, kind=kind)
        self._number += count
        is_long = self._clock.end(step)
        self._records += 1
        self._clock.is_precise = self._records % PRECISE_EVERY == 0
        return is_long

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

    def _kind_of(self, counts: Sequence[int]) -> _Kind:
        content = tuple((index, count) for index, count in enumerate(counts) if count)
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
