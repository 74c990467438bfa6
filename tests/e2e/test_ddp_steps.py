"""What rank 0 tells of its steps: each while settings are tried, several at a time after that."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from autotune.ddp import steps  # noqa: E402
from autotune.ddp.steps import IDLE_STEPS, Steps  # noqa: E402


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

    def step(self, module: int = 0, *, epoch: int = 1, is_idle: bool = True) -> None:
        self.steps.forward(self.indices[module], self.modules[module])
        self.now_s += 1.0
        self.steps.end(epoch, is_idle=is_idle)

    def told(self) -> list[tuple[int, int, float, float, int]]:
        records, _ = self.steps.take()
        return [(r.step, r.count, r.duration_us, r.exposed_us, r.epoch) for r in records]


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    found = Job(monkeypatch)
    found.step(is_idle=False)  # the time of the first one is not known
    return found


def test_while_settings_are_tried_each_step_is_told(job: Job) -> None:
    for _ in range(8):
        job.step(is_idle=False)
    assert job.told() == [(number, 1, 1e6, 5e5, 1) for number in range(1, 9)]


def test_after_that_several_are_told_at_a_time_and_looked_at_seldom(job: Job) -> None:
    for _ in range(IDLE_STEPS):
        job.step()
    job.looks = 0
    for _ in range(16 * IDLE_STEPS):
        job.step()
    expected = [(1 + 4 * k, 4, 4e6, 2e6, 1) for k in range(17)]
    assert IDLE_STEPS == 4 and job.told() == expected
    assert job.looks == 4


def test_a_step_that_takes_long_is_looked_at(job: Job) -> None:
    for _ in range(2 * IDLE_STEPS):
        job.step()
    job.looks = 0
    job.now_s += 100
    for _ in range(IDLE_STEPS):
        job.step()
    assert job.looks == 1


def test_steps_under_two_settings_say_nothing_of_either(job: Job) -> None:
    for number in range(8):
        job.step(epoch=1 if number < 6 else 2)
    assert [epoch for *_, epoch in job.told()] == [1, -1]


def test_when_settings_are_tried_again_each_step_is_told_again(job: Job) -> None:
    for number in range(9):
        job.step(is_idle=number < 6)
    assert [(step, count) for step, count, *_ in job.told()] == [(1, 4), (5, 3), (8, 1), (9, 1)]


def test_steps_of_several_kinds_are_told_one_by_one(job: Job) -> None:
    for number in range(12):
        job.step(number % 2)
    told = job.told()
    assert sum(count for _, count, *_ in told) == 12
    assert [(count, epoch) for _, count, *_, epoch in told[1:]] == [(1, 1)] * (len(told) - 1)
