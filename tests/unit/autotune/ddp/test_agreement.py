"""All ranks make the same change at the same step, or none does; one that fails stops nobody."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from autotune.ddp.agreement import OFTEN, RARELY, Agreed, Agreement, Declined, Over, interval_of
from autotune.service.epochs import Change
from autotune.space import MIB
from autotune.tables.ddp import DdpParams

SMALL = DdpParams(bucket_cap_bytes=MIB, first_bucket_bytes=4096, gradient_as_bucket_view=True)


class Round:
    """A sum over ranks that are objects here."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.rows: list[Sequence[int]] = []

    def wait(self, seconds: float) -> Sequence[int]:
        if len(self.rows) < self.size:
            raise TimeoutError(f"{len(self.rows)} of {self.size} ranks within {seconds} s")
        return [sum(column) for column in zip(*self.rows, strict=True)]


class Ranks:
    """Ranks that step together; each begins its n-th round with the others' n-th."""

    def __init__(self, size: int) -> None:
        self.rounds: list[Round] = []
        self.begun = [0] * size
        self.size = size
        self.ranks = [
            Agreement(self.begin(rank), DdpParams, rank=rank, size=size) for rank in range(size)
        ]

    def begin(self, rank: int):
        def begin(numbers: list[int]) -> Round:
            number = self.begun[rank]
            self.begun[rank] += 1
            if number == len(self.rounds):
                self.rounds.append(Round(self.size))
            self.rounds[number].rows.append(numbers)
            return self.rounds[number]

        return begin

    def step(self, wanted: Change | None = None, *, ready=lambda rank: True, every=OFTEN) -> list:
        """One step of all ranks; return what each gets."""
        return [
            one.step(wanted if rank == 0 else None, lambda rank=rank: ready(rank), interval=every)
            for rank, one in enumerate(self.ranks)
        ]


def change(epoch: int, params: DdpParams = SMALL) -> Change:
    return Change(epoch=epoch, params=params.as_dict())


@pytest.mark.parametrize("size", [1, 2, 5])
def test_all_ranks_make_a_change_at_the_same_step_and_once(size: int) -> None:
    ranks = Ranks(size)
    assert ranks.step(change(1)) == [None] * size
    assert ranks.step(change(1)) == [Agreed(change=change(1))] * size
    assert [ranks.step(change(1)) for _ in range(5)] == [[None] * size] * 5


def test_what_one_rank_cannot_make_none_makes_and_the_next_change_goes_on() -> None:
    ranks = Ranks(3)
    ranks.step(change(1), ready=lambda rank: rank != 2)
    assert ranks.step(change(1)) == [Declined(change=change(1), count=1)] * 3
    ranks.step(change(2, DdpParams()))
    assert ranks.step() == [Agreed(change=change(2, DdpParams()))] * 3


def test_a_rank_that_fails_ends_it_for_all_at_the_same_step() -> None:
    ranks = Ranks(3)
    ranks.step()
    ranks.ranks[1].fail()
    assert ranks.step(change(1)) == [None] * 3
    found = ranks.step(change(1))
    assert found == [Over(reason="rank 1 cannot go on with it")] * 3
    assert all(one.is_over for one in ranks.ranks)
    assert ranks.step(change(2)) == [None] * 3 and len(ranks.rounds) == 2


def test_a_change_that_was_agreed_on_before_a_failure_is_made_by_all() -> None:
    ranks = Ranks(2)
    ranks.step(change(1))
    ranks.ranks[1].fail()
    assert ranks.step() == [Agreed(change=change(1))] * 2
    assert all(isinstance(one, Over) for one in ranks.step())


def test_an_error_in_what_is_asked_counts_as_a_failure() -> None:
    def ready(rank: int) -> bool:
        raise MemoryError

    ranks = Ranks(2)
    ranks.step(change(1), ready=ready)
    assert all(isinstance(one, Over) for one in ranks.step())


def test_ranks_that_step_differently_stop() -> None:
    ranks = Ranks(2)
    ranks.ranks[0]._clock = 3
    ranks.step(change(1))
    assert [type(one) for one in ranks.step()] == [Over, Over]


def test_an_idle_tuner_makes_rounds_rare_and_a_wish_makes_them_frequent_again() -> None:
    ranks = Ranks(2)
    for _ in range(10 * RARELY):
        ranks.step(every=interval_of(1.0, is_idle=True))
    assert len(ranks.rounds) <= 12
    wanted = change(1)
    steps = 0
    while Agreed(change=wanted) not in ranks.step(wanted):
        steps += 1
        assert steps <= RARELY + 1
    before = len(ranks.rounds)
    for _ in range(10):
        ranks.step()
    assert len(ranks.rounds) - before == 10 // OFTEN


def test_rounds_are_no_more_frequent_than_short_steps_can_bear() -> None:
    assert [interval_of(s, is_idle=False) for s in (1.0, 0.02, 0.008, 1e-4, 0.0)] == [
        1,
        1,
        3,
        8,
        8,
    ]
    ranks = Ranks(2)
    for _ in range(80):
        ranks.step(every=8)
    assert 10 <= len(ranks.rounds) <= 12


def test_a_rank_that_is_missing_is_an_error_here_and_nobody_has_made_anything() -> None:
    ranks = Ranks(2)
    ranks.ranks[0].step(change(1), lambda: True)
    with pytest.raises(TimeoutError):
        ranks.ranks[0].step(change(1), lambda: True)
