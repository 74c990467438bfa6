"""All ranks make the same change at the same step, or none does; one that fails stops nobody."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from autotune.ddp import agreement
from autotune.ddp.agreement import Agreed, Coordinator, Declined, Member, Over, Word
from autotune.ddp.lines import Line
from autotune.service.epochs import Change
from autotune.space import MIB
from autotune.tables.ddp import DdpParams

SMALL = DdpParams(bucket_cap_bytes=MIB, first_bucket_bytes=4096, gradient_as_bucket_view=True)


def change(epoch: int, params: DdpParams = SMALL) -> Change:
    return Change(epoch=epoch, params=params.as_dict())


@dataclass
class Rank:
    """One rank, a thread: what it does at the end of step n (1, 2, ...), and what came of it."""

    part: Any
    number: int
    is_ready: Callable[[int], bool] = lambda step: True
    before: Callable[[int], None] = lambda step: None
    passes: Callable[[int], int] = lambda step: step
    found: dict[int, Any] = field(default_factory=dict)
    asked: list[dict[str, Any]] = field(default_factory=list)

    def step(self, step: int, wanted: Change | None) -> None:
        self.before(step)
        proposal = wanted if self.number == 0 else None

        def ready(params: Mapping[str, Any]) -> bool:
            self.asked.append(dict(params))
            return self.is_ready(step)

        outcome = self.part.step(self.passes(step), proposal, ready)
        if outcome is not None:
            self.found[step] = outcome


class PostedLine(Line):
    """A line on which ``post`` decides what becomes of each message: True: it is sent."""

    post: Callable[[Sequence[int]], bool] = staticmethod(lambda numbers: True)

    def send(self, numbers: Sequence[int]) -> None:
        if self.post(numbers):
            super().send(numbers)


class Register:
    """The place that ranks have in common, for threads."""

    def __init__(self) -> None:
        self.content: dict[int, bool] = {}
        self.lock = threading.Lock()
        self.is_there = True

    def settle(self, number: int, is_made: bool) -> bool:
        with self.lock:
            if not self.is_there:
                raise ConnectionError("the store is gone")
            return self.content.setdefault(number, is_made)


class Job:
    """Ranks of which none is more than ``lead`` steps ahead: gradients, or a device's queue."""

    def __init__(self, size: int, *, lead: int = 0) -> None:
        pairs = {rank: socket.socketpair() for rank in range(1, size)}
        self.lines = {rank: PostedLine(pair[0]) for rank, pair in pairs.items()}
        self.register = Register()
        self.ranks = [Rank(Coordinator(self.lines, DdpParams, self.register), 0)]
        self.ranks += [
            Rank(Member(PostedLine(pair[1]), DdpParams, self.register), rank)
            for rank, pair in pairs.items()
        ]
        self.lead = lead
        self.reached = [0] * size
        self.moved = threading.Condition()
        self.wanted: Callable[[int], Change | None] = lambda step: None

    def reach(self, number: int, step: int) -> None:
        """Come to the end of a step, when the others have come so far that this can be."""
        with self.moved:
            self.reached[number] = step
            self.moved.notify_all()
            assert self.moved.wait_for(lambda: min(self.reached) >= step - self.lead, 20)

    def run(self, steps: int) -> list[dict[int, Any]]:
        """Make steps; return what each rank has got, by step."""
        errors = []

        def train(rank: Rank) -> None:
            try:
                for step in range(1, steps + 1):
                    self.reach(rank.number, step)
                    rank.step(step, self.wanted(step))
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=train, args=[rank]) for rank in self.ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not errors, errors
        return [rank.found for rank in self.ranks]


@pytest.fixture
def job_of() -> Iterator[Callable[..., Job]]:
    """Make jobs; their lines are closed in the end."""
    jobs: list[Job] = []

    def make(size: int, *, lead: int = 0) -> Job:
        jobs.append(Job(size, lead=lead))
        return jobs[-1]

    yield make
    for job in jobs:
        for rank in job.ranks:
            rank.part.close()


JobOf = Callable[..., Job]


def made(found: list[dict[int, Any]]) -> list[list[tuple[int, int]]]:
    """Return (step, epoch) of the changes that each rank makes."""
    return [
        [(step, one.change.epoch) for step, one in each.items() if isinstance(one, Agreed)]
        for each in found
    ]


@pytest.mark.parametrize("size", [2, 5])
def test_all_ranks_make_a_change_at_the_same_step_and_once(size: int, job_of: JobOf) -> None:
    job = job_of(size)
    job.wanted = lambda step: change(1)
    found = job.run(8)
    assert all(each == found[0] for each in found)
    ((step, outcome),) = found[0].items()
    assert outcome == Agreed(change=change(1)) and step <= 3


def test_every_change_is_made_and_between_changes_rank_0_says_nothing(job_of: JobOf) -> None:
    job = job_of(3)
    job.wanted = lambda step: change(1 + step // 20)
    found = made(job.run(100))
    assert found[0] == found[1] == found[2]
    assert [epoch for _, epoch in found[0]] == [1, 2, 3, 4, 5]
    assert job.ranks[0].part._number <= 7


def test_ranks_whose_hosts_run_ahead_still_change_at_the_same_step(job_of: JobOf) -> None:
    job = job_of(3, lead=6)
    job.ranks[0].before = lambda step: time.sleep(0.002)
    job.wanted = lambda step: change(1 + step // 25)
    found = made(job.run(200))
    assert found[0] == found[1] == found[2]
    assert {epoch for _, epoch in found[0]} >= {1, 2, 3, 4, 5, 6, 7}
    assert job.ranks[0].part._notice > 1


def test_what_one_rank_cannot_make_none_makes_and_the_next_change_goes_on(job_of: JobOf) -> None:
    job = job_of(3)
    job.ranks[2].is_ready = lambda step: step > 10
    job.wanted = lambda step: change(1) if step < 12 else change(2, DdpParams())
    found = job.run(20)
    assert made(found) == [made(found)[0]] * 3 and [e for _, e in made(found)[0]] == [2]
    declined = [one for one in found[0].values() if isinstance(one, Declined)]
    assert declined == [Declined(change=change(1), count=1)]


def test_every_rank_is_asked_about_the_setting_that_is_proposed(job_of: JobOf) -> None:
    job = job_of(3)
    job.wanted = lambda step: change(1)
    job.run(8)
    assert [rank.asked for rank in job.ranks] == [[SMALL.as_dict()]] * 3


def test_rank_0_declines_too(job_of: JobOf) -> None:
    job = job_of(2)
    job.ranks[0].is_ready = lambda step: False
    job.wanted = lambda step: change(1)
    found = job.run(6)
    assert list(found[0].values()) == [Declined(change=change(1), count=1)] and found[1] == {}


@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_fails_ends_it_for_all_and_nobody_changes_any_more(
    who: int, job_of: JobOf
) -> None:
    job = job_of(3)
    job.ranks[who].before = lambda step: job.ranks[who].part.fail() if step == 5 else None
    job.wanted = lambda step: change(1) if step >= 5 else None
    found = job.run(12)
    assert made(found) == [[], [], []]
    assert list(found[0].values()) == [Over(reason=f"rank {who} cannot go on with it")]
    assert all(isinstance(one, Over) for each in found for one in each.values())
    assert all(rank.part._is_over for rank in job.ranks)


def test_a_change_that_was_promised_before_a_failure_is_made_by_all(job_of: JobOf) -> None:
    job = job_of(2)
    job.ranks[0].part._notice = 4
    job.ranks[1].before = lambda step: job.ranks[1].part.fail() if step == 4 else None
    job.wanted = lambda step: change(1) if step < 7 else change(2)
    found = job.run(20)
    assert made(found)[0] == made(found)[1] and [e for _, e in made(found)[0]] == [1]
    assert [one for one in found[0].values() if isinstance(one, Over)]


def test_an_error_in_what_is_asked_counts_as_a_failure(job_of: JobOf) -> None:
    def ready(step: int) -> bool:
        raise MemoryError

    job = job_of(2)
    job.ranks[1].is_ready = ready
    job.wanted = lambda step: change(1)
    assert list(job.run(6)[0].values()) == [Over(reason="rank 1 cannot go on with it")]


def test_ranks_of_which_the_same_steps_are_other_places_of_the_training_stop(job_of: JobOf) -> None:
    job = job_of(2)
    job.ranks[1].passes = lambda step: step + (step > 3)  # an optimizer's step was left out here
    job.wanted = lambda step: change(1) if step > 5 else None
    found = job.run(12)
    assert made(found) == [[], []]
    assert list(found[0].values()) == [Over(reason="the ranks do not make the same steps")]


def test_a_rank_that_waits_in_vain_drops_the_change_for_all_and_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, job_of: JobOf
) -> None:
    monkeypatch.setattr(agreement, "PATIENCE_S", 0.1)
    job = job_of(3, lead=3)
    job.ranks[0].part._notice = 2
    job.ranks[0].before = lambda step: time.sleep(0.5) if step == 4 else None  # a checkpoint
    job.wanted = lambda step: change(1) if step >= 2 else None
    found = made(job.run(30))
    assert found[0] == found[1] == found[2]
    assert [epoch for _, epoch in found[0]] == [1] and found[0][0][0] > 4


def test_a_decision_that_is_late_for_one_rank_is_made_by_it_all_the_same(
    monkeypatch: pytest.MonkeyPatch, job_of: JobOf
) -> None:
    monkeypatch.setattr(agreement, "PATIENCE_S", 0.05)
    job = job_of(3)
    late: list[Sequence[int]] = []

    def delay(numbers: Sequence[int]) -> bool:
        if numbers[0] == Word.MAKE and not late:
            late.append(numbers)
            return False
        return True

    job.lines[2].post = delay
    job.ranks[0].before = lambda step: Line.send(job.lines[2], late[0]) if step == 9 else None
    job.wanted = lambda step: change(1 + step // 12)
    found = made(job.run(30))
    assert found[0] == found[1] == found[2] and [e for _, e in found[0]] == [1, 2, 3]


def test_a_decision_whose_line_ends_is_made_and_is_the_last_one(job_of: JobOf) -> None:
    job = job_of(3)

    def cut(numbers: Sequence[int]) -> bool:
        if numbers[0] == Word.MAKE:
            Line.close(job.lines[2])
            return False
        return True

    job.lines[2].post = cut
    job.wanted = lambda step: change(1) if step < 10 else change(2)
    found = job.run(20)
    assert made(found) == [made(found)[0]] * 3 and [e for _, e in made(found)[0]] == [1]
    assert all(isinstance(list(each.values())[-1], Over) for each in found)


def test_without_the_register_nobody_makes_a_change_any_more(job_of: JobOf) -> None:
    job = job_of(3)
    job.ranks[0].before = lambda step: setattr(job.register, "is_there", step < 10)
    job.wanted = lambda step: change(1) if step < 10 else change(2)
    found = job.run(20)
    assert made(found) == [made(found)[0]] * 3 and [e for _, e in made(found)[0]] == [1]
    assert Over(reason="the store is gone") in found[0].values()


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_late_or_lost_no_two_ranks_differ(
    seed: int, monkeypatch: pytest.MonkeyPatch, job_of: JobOf
) -> None:
    monkeypatch.setattr(agreement, "PATIENCE_S", 0.01)
    monkeypatch.setattr(agreement, "ANSWER_S", 0.002)
    monkeypatch.setattr(agreement, "REST_STEPS", 1)
    monkeypatch.setattr(agreement, "MOST_MISSES", 1000)
    rng, job, troubled = random.Random(seed), job_of(3, lead=seed), 100

    def before(step: int) -> None:
        if step < troubled:
            time.sleep(0.03 * (rng.random() < 0.1))
        if step == troubled:
            monkeypatch.setattr(agreement, "PATIENCE_S", 2.0)
            monkeypatch.setattr(agreement, "ANSWER_S", 0.5)

    for line in [*job.lines.values(), *(rank.part._line for rank in job.ranks[1:])]:
        line.post = lambda numbers: job.reached[0] > troubled or rng.random() > 0.2
    for rank in job.ranks:
        rank.before = before
    job.wanted = lambda step: change(1 + step // 5)
    found = made(job.run(troubled + 40))
    assert found[0] == found[1] == found[2]
    assert found[0][-1][0] > troubled, "nothing is lost any more, and yet nothing is agreed on"


def test_rank_0_asks_again_where_a_rank_has_gone_on_to_something_else(
    monkeypatch: pytest.MonkeyPatch, job_of: JobOf
) -> None:
    monkeypatch.setattr(agreement, "ANSWER_S", 0.1)
    job = job_of(2, lead=3)
    job.ranks[1].before = lambda step: time.sleep(1.0) if step == 5 else None  # an evaluation
    job.wanted = lambda step: change(1) if step >= 3 else None
    found = made(job.run(40))
    assert found[0] == found[1] and [epoch for _, epoch in found[0]] == [1]


def test_ranks_that_never_answer_are_the_end(
    monkeypatch: pytest.MonkeyPatch, job_of: JobOf
) -> None:
    monkeypatch.setattr(agreement, "ANSWER_S", 0.01)
    monkeypatch.setattr(agreement, "REST_STEPS", 1)
    job = job_of(2)
    job.ranks[1].part.step = lambda *given: None
    job.wanted = lambda step: change(1)
    found = job.run(100)
    assert list(found[0].values()) == [Over(reason="ranks do not answer")]


def test_a_rank_that_is_gone_is_the_end_for_the_others(job_of: JobOf) -> None:
    job = job_of(3)
    job.ranks[2].before = lambda step: job.ranks[2].part.close() if step == 3 else None
    job.wanted = lambda step: change(1) if step >= 4 else None
    found = job.run(10)
    assert made(found) == [[], [], []] and isinstance(next(iter(found[0].values())), Over)
    assert found[1] == {step: one for step, one in found[1].items() if isinstance(one, Over)}
