"""What rank 0 tells of its steps: each while settings are tried, several at a time after that."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from autotune.ddp import steps  # noqa: E402
from autotune.ddp.steps import IDLE_STEPS, PRECISE_EVERY, Steps  # noqa: E402


class Job:
    """Two modules; each step takes a second, and waits for half of one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.looks = 0.0, 0
        monkeypatch.setattr(steps.time, "perf_counter", lambda: self.now_s)
        monkeypatch.setattr(steps.private, "log_backward", self.look)
        monkeypatch.setattr(steps.private, "exposed_us", lambda ddp: 5e5)
        self.modules = [torch.nn.Sequential(torch.nn.Linear(2, 2)) for _ in range(2)]
        for module in self.modules:
            module.module = module[0]
        self.steps = Steps(is_device=False)
        self.indices = [self.steps.add_module(module) for module in self.modules]

    def look(self, ddp: Any) -> None:
        self.looks += 1

    def end(self, *modules: int, epoch: int = 1) -> bool:
        """End a record of as many steps, in each of which that module was reduced."""
        for module in modules:
            self.steps.counts[self.indices[module]] += 1
        self.steps.forward(self.modules[modules[-1]])
        self.now_s += len(modules)
        return self.steps.end(epoch, count=len(modules))

    def told(self) -> list[tuple[int, int, float, float, int]]:
        records, _ = self.steps.take()
        return [(r.step, r.count, r.duration_us, r.exposed_us, r.epoch) for r in records]


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    found = Job(monkeypatch)
    found.end(0)  # the time of the first one is not known
    return found


REST = [0] * IDLE_STEPS


def test_while_settings_are_tried_each_step_is_told(job: Job) -> None:
    for _ in range(8):
        job.end(0)
    assert job.told() == [(number, 1, 1e6, 5e5, 1) for number in range(1, 9)]


def test_after_that_several_are_told_at_a_time_and_looked_at_seldom(job: Job) -> None:
    job.end(*REST)
    job.looks = 0
    for _ in range(3 * PRECISE_EVERY):
        job.end(*REST)
    expected = [(1 + 4 * k, 4, 4e6, 2e6, 1) for k in range(3 * PRECISE_EVERY + 1)]
    assert IDLE_STEPS == 4 and job.told() == expected
    assert job.looks == 3


def test_a_step_that_takes_long_is_looked_at_and_said_to_be_long(job: Job) -> None:
    for _ in range(2):
        job.end(*REST)
    job.looks = 0
    job.now_s += 100
    assert job.end(*REST) and job.looks == 1
    job.now_s += 100
    assert not job.end(*REST)  # it is usual by now


def test_steps_of_several_kinds_in_one_record_say_nothing_of_a_setting(job: Job) -> None:
    assert job.steps.is_uniform
    job.end(0, 1, 0, 1)
    assert [(count, epoch) for _, count, *_, epoch in job.told()] == [(4, -1)]
    assert not job.steps.is_uniform


def test_what_a_kind_of_step_reduces_is_told_when_it_has_come_twice(job: Job) -> None:
    assert job.steps.take()[1] == []
    job.end(1)
    job.end(0)
    (found,) = job.steps.take()[1]
    assert found.operations == (("allreduce", 8), ("allreduce", 16))
    job.end(1)
    assert len(job.steps.take()[1]) == 1
    job.end(1)
    assert job.steps.take()[1] == []


def test_a_module_that_comes_late_is_another_kind_of_step_only_where_it_is_reduced(
    job: Job,
) -> None:
    late = torch.nn.Sequential(torch.nn.Linear(2, 2))
    late.module = late[0]
    assert job.steps.add_module(late) == 2
    job.end(*REST)
    assert job.steps.is_uniform
    job.steps.counts[2] += 1
    job.end(*REST)
    assert not job.steps.is_uniform
