"""What the adapter does in rank 0's training thread: little while it tunes, next to nothing after.

Calls of functions are counted, Python's and C's, as the time of each is much the same.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from autotune.ddp import session as talk  # noqa: E402
from autotune.ddp import steps  # noqa: E402
from autotune.ddp import torch_private as private  # noqa: E402
from autotune.ddp.adapter import Adapter  # noqa: E402
from autotune.ddp.agreement import Coordinator  # noqa: E402
from autotune.ddp.settings import read_settings  # noqa: E402
from autotune.ddp.steps import IDLE_STEPS, Steps  # noqa: E402
from autotune.service import protocol  # noqa: E402
from autotune.space import MIB  # noqa: E402
from autotune.tables.ddp import DdpParams  # noqa: E402
from autotune.tuning.changes import Apply, Done  # noqa: E402
from autotune.tuning.steps.scoring import SETTLE_STEPS  # noqa: E402
from autotune.tuning.steps.warmup import DEFAULT_STEPS_PER_SAMPLE  # noqa: E402

DEFAULT, SMALL = DdpParams().as_dict(), DdpParams(bucket_cap_bytes=MIB).as_dict()


class Service:
    """Takes the place of the tuner's process; keeps what it is told."""

    has_word = broken = False

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def send(self, line: bytes, *, droppable: bool = False) -> None:
        self.lines.append(line)

    @property
    def talks(self) -> list[protocol.Steps]:
        """Talks in which it has heard of steps."""
        found = map(protocol.decode, self.lines)
        return [one for one in found if isinstance(one, protocol.Steps)]

    @property
    def records(self) -> list[protocol.StepRecord]:
        """Steps that it has heard of."""
        return [record for one in self.talks for record in one.records]

    def flush(self) -> None:
        pass

    def receive(self) -> list[bytes]:
        return []


class Register:
    """All agree."""

    def settle(self, number: int, is_made: bool) -> bool:
        return is_made


class Job:
    """Rank 0 of a job in which the other ranks do as they are told; its hooks are called here."""

    def __init__(self, modules: int = 1) -> None:
        self.service = Service()
        self.adapter = adapter = Adapter(read_settings({}))
        adapter.has_met = True
        adapter._steps = adapter._watched = Steps(is_device=False)
        adapter._counts = adapter._steps.counts
        adapter._agreement = Coordinator({}, DdpParams, Register())
        adapter.session._service = self.service  # type: ignore[assignment]
        adapter.session._is_training_now = True
        adapter.session._take(protocol.Ready(lines=()))
        self.modules = [DistributedDataParallel(torch.nn.Linear(2, 2)) for _ in range(modules)]
        for module in self.modules:
            adapter.wrapped(module)
        parameters = [one for module in self.modules for one in module.parameters()]
        self.optimizer = torch.optim.SGD(parameters, lr=0.1)
        self.begins = private.never_compiled(adapter.before_forward)
        self.ends = private.never_compiled(adapter.stepped)

    def say(self, message: Any) -> None:
        """Have the service say something."""
        self.adapter.session._take(message)

    def finish_tuning(self) -> None:
        """Have the tuner end with a setting, which is in force after some steps."""
        self.say(Apply(epoch=1, params=SMALL))
        self.train(8)
        self.say(Done(epoch=2, params=DEFAULT, certified=False, text="done"))
        self.train(4 * IDLE_STEPS)
        assert self.adapter._epoch == 2
        self.service.lines.clear()

    def train(self, count: int, *, module: int = -1) -> float:
        """Make steps, of all modules or of one; return how many calls the hooks made in each."""
        calls = 0

        def see(frame: Any, event: str, what: Any) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        for _ in range(count):
            self.optimizer.zero_grad()
            for one in self.modules if module < 0 else [self.modules[module]]:
                sys.setprofile(see)
                self.begins(one)
                sys.setprofile(None)
                calls -= 1  # the one that ends the counting
                one(torch.ones(1, 2)).sum().backward()
            sys.setprofile(see)
            self.ends(self.optimizer)
            sys.setprofile(None)
            calls -= 1
        return calls / count


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Make jobs, which talk as often as they may, and of which no step is taken for a long one."""
    for name in ("TALK_SECONDS", "IDLE_TALK_SECONDS"):
        monkeypatch.setattr(talk, name, 0.0)
    monkeypatch.setattr(steps, "LONG", 1e9)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield Job
    dist.destroy_process_group()


def quiet(job: Job) -> None:
    """Leave the talks with the service out."""
    job.adapter.session._next_talk = float("inf")


def test_a_step_costs_few_calls_while_settings_are_tried(job: type[Job]) -> None:
    one = job()
    one.say(Apply(epoch=1, params=SMALL))
    one.train(8)
    quiet(one)
    assert one.train(64) <= 34


def test_a_step_costs_fewer_calls_after_that(job: type[Job]) -> None:
    one = job()
    one.finish_tuning()
    quiet(one)
    assert one.train(64) <= 18
    assert min(one.train(1) for _ in range(IDLE_STEPS)) <= 12


def test_a_talk_with_the_service_costs_few_calls(job: type[Job]) -> None:
    one = job()
    one.say(Apply(epoch=1, params=SMALL))
    one.train(2 * talk.TALK_STEPS)
    loud = one.train(32 * talk.TALK_STEPS)
    quiet(one)
    assert talk.TALK_STEPS * (loud - one.train(32 * talk.TALK_STEPS)) <= 54


def test_steps_are_told_of_together_and_at_once_where_a_window_or_a_long_step_ends(
    job: type[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = job()
    one.say(Apply(epoch=1, params=SMALL))
    while one.adapter._epoch == 0:
        one.train(1)
    one.service.lines.clear()
    window = SETTLE_STEPS + DEFAULT_STEPS_PER_SAMPLE
    one.train(window)
    assert sum(record.epoch == 1 for record in one.service.records) == window
    assert len(one.service.talks) == window / talk.TALK_STEPS
    monkeypatch.setattr(steps, "LONG", 0.0)
    one.train(1)
    assert len(one.service.talks) == window / talk.TALK_STEPS + 1


def test_after_tuning_every_step_is_told_of_and_several_are_one_record(job: type[Job]) -> None:
    one = job()
    one.finish_tuning()
    one.train(64)
    records = one.service.records
    assert {(record.count, record.epoch) for record in records} == {(IDLE_STEPS, 2)}
    first = records[0].step
    assert [record.step for record in records] == [
        first + IDLE_STEPS * k for k in range(64 // IDLE_STEPS)
    ]


def test_a_job_that_is_tuned_again_tells_each_step_and_makes_the_changes(job: type[Job]) -> None:
    one = job()
    one.finish_tuning()
    one.say(Apply(epoch=3, params=SMALL))
    one.train(2 * IDLE_STEPS)
    assert one.adapter._epoch == 3
    assert private.setting_of(one.modules[0]).as_dict() == SMALL
    one.train(talk.TALK_STEPS)
    one.service.lines.clear()
    one.train(4 * talk.TALK_STEPS)
    assert {record.count for record in one.service.records} == {1}


def test_steps_of_several_kinds_are_told_one_by_one(job: type[Job]) -> None:
    one = job(2)
    one.finish_tuning()
    for number in range(24):
        one.train(1, module=number % 2)
    told = one.service.records
    assert [record.count for record in told[2:]] == [1] * len(told[2:]) and len(told) > 12
    assert all(record.epoch == -1 for record in told if record.count > 1)


def test_ranks_agree_on_a_change_after_steps_that_were_not_looked_at(job: type[Job]) -> None:
    one = job()
    one.finish_tuning()
    agreement = one.adapter._agreement
    assert isinstance(agreement, Coordinator)
    clock, passes = agreement._clock, list(agreement._passes)
    one.train(IDLE_STEPS + 1)
    assert agreement._clock == clock + IDLE_STEPS + 1
    assert list(agreement._passes) == [*passes, *range(passes[-1] + 1, passes[-1] + 2 + IDLE_STEPS)]


def test_another_optimizer_takes_over_where_the_usual_one_is_used_no_more(job: type[Job]) -> None:
    one = job()
    one.finish_tuning()
    other = torch.optim.SGD(one.modules[0].parameters(), lr=0.1)
    agreement = one.adapter._agreement
    assert isinstance(agreement, Coordinator)
    clock = agreement._clock
    one.ends(other)  # beside the usual one it ends no step
    one.train(1)
    assert agreement._clock == clock + 1
    one.optimizer = other
    one.train(20)
    assert agreement._clock > clock + 8
