"""Decisions of the driver: who is in a round, who is begun again, when the job ends."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horovod.common.rounds import ADDED, REMOVED
from horovod.runner.elastic.actions import (
    Action,
    Dismiss,
    End,
    Lose,
    Say,
    Settle,
    Start,
    Stop,
    Tell,
)
from horovod.runner.elastic.job import (
    GATHER_SECONDS,
    LATE_START_SECONDS,
    MOST_UNFORMED,
    STRAGGLER_SECONDS,
    ElasticJob,
)
from horovod.runner.elastic.options import Elastic

Kind = TypeVar("Kind", bound=Action)
KILLED = {"code": -9, "host": "h", "tail": ["last words"]}
FAILED = {"code": 3, "host": "h", "tail": ["an error"]}


class Play:
    """A job with its clock, and workers that do what they are told."""

    def __init__(self, hosts: Mapping[str, int] | None = None, **wanted: Any) -> None:
        wanted = {"first": 2, "least": 2, "script": "x", **wanted}
        self.now = 0.0
        self.job = ElasticJob(Elastic(**wanted), self.now, random.Random(1))
        self.actions: list[Action] = []
        self.alive: dict[int, str] = {}
        self.round: Settle | None = None
        if hosts:
            self.find(hosts)

    def find(self, hosts: Mapping[str, int]) -> None:
        self.job.hosts_found(hosts, self.now)
        self.take()

    def take(self) -> None:
        """Do what was decided."""
        while new := self.job.take_actions():
            self.actions += new
            for action in new:
                if isinstance(action, Start):
                    self.alive[action.worker] = action.host
                elif isinstance(action, Settle):
                    self.round = action
                elif isinstance(action, Stop | Dismiss) and action.worker in self.alive:
                    del self.alive[action.worker]
                    code = -15 if isinstance(action, Stop) else 0
                    self.job.ended(action.worker, {"code": code}, self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.job.tick(self.now)
        self.take()

    def ask(self, *workers: int, why: str = "") -> None:
        for worker in workers:
            self.job.asked(worker, why, self.now)
            self.take()

    def run(self) -> None:
        """Let the engine of the current round run."""
        assert self.round is not None
        for worker in self.round.workers:
            self.job.runs(worker, self.round.number, self.now)
        self.take()

    def begin(self) -> None:
        """Let all that were started ask, and the round run."""
        self.ask(*self.alive)
        self.run()

    def end(self, *workers: int, record: Mapping[str, Any] = KILLED) -> None:
        for worker in workers:
            del self.alive[worker]
            self.job.ended(worker, record, self.now)
            self.take()

    def all(self, kind: type[Kind]) -> list[Kind]:
        return [action for action in self.actions if isinstance(action, kind)]

    @property
    def workers(self) -> list[int]:
        assert self.round is not None
        return list(self.round.workers)

    @property
    def last(self) -> End:
        (end,) = self.all(End)
        return end


def test_workers_start_where_the_slots_are_and_know_the_rank_that_they_will_have() -> None:
    play = Play({"a": 2, "b": 1})
    starts = play.all(Start)
    assert [(s.worker, s.host, s.place["RANK"], s.place["SIZE"]) for s in starts] == [
        (0, "a", 0, 3),
        (1, "a", 1, 3),
        (2, "b", 2, 3),
    ]
    assert [s.place["LOCAL_RANK"] for s in starts] == [0, 1, 0]
    play.ask(2, 0)
    assert play.round is None
    play.ask(1)
    assert play.workers == [0, 1, 2] and play.round is not None and play.round.is_fresh
    assert list(play.round.places) == [s.place for s in starts]


def test_who_comes_for_a_lost_one_has_its_slot_whatever_its_local_rank() -> None:
    play = Play({"a": 2}, least=1)
    play.begin()
    play.end(0)
    start = play.all(Start)[-1]
    assert (start.worker, start.slot, start.place["LOCAL_RANK"]) == (2, 0, 1)
    assert [s.slot for s in play.all(Start)] == [0, 1, 0]


def test_nothing_starts_before_there_is_room_for_the_first_ranks() -> None:
    play = Play({"a": 1})
    assert not play.all(Start)
    play.find({"a": 1, "b": 1})
    assert len(play.all(Start)) == 2


def test_after_the_time_limit_it_starts_with_what_is_enough() -> None:
    play = Play({"a": 2}, first=4, timeout_s=60.0)
    play.wait(59.0)
    assert not play.all(Start)
    play.wait(2.0)
    play.begin()
    assert play.workers == [0, 1]


def test_hosts_that_never_suffice_end_the_job_with_one_sentence() -> None:
    play = Play({"a": 1}, timeout_s=60.0)
    play.wait(61.0)
    assert play.last.code == 1 and "room for 1 of at least 2 ranks" in play.last.text


def test_there_are_never_more_ranks_than_wanted() -> None:
    play = Play({"a": 2, "b": 4}, most=3)
    play.begin()
    assert play.workers == [0, 1, 2]
    play.end(1)
    assert play.all(Start)[-1].host == "a"
    play.ask(0, 2)
    assert play.workers == [0, 2]


def test_late_ones_come_later() -> None:
    play = Play({"a": 4})
    play.ask(0, 1)
    play.wait(GATHER_SECONDS + 1)
    assert play.workers == [0, 1]
    play.run()
    play.ask(2, 3)
    assert play.all(Tell) == [Tell([0, 1], ADDED)]
    few = Play({"a": 4}, first=4)
    few.ask(0, 1)
    few.wait(GATHER_SECONDS + 1)
    assert few.round is None
    few.wait(LATE_START_SECONDS)
    assert few.workers == [0, 1]


def test_survivors_go_on_without_the_replacement_which_joins_when_it_is_there() -> None:
    play = Play({"a": 4})
    play.begin()
    play.end(0)
    assert play.all(Lose) == [Lose(1, [1, 2, 3], play.all(Lose)[0].why)]
    assert "ended by signal 9 (SIGKILL)" in play.all(Lose)[0].why
    assert play.all(Start)[-1].worker == 4 and play.all(Start)[-1].place["RANK"] == 3
    play.ask(2, 1, 3)
    assert play.round is not None and play.round.number == 2 and play.round.is_fresh
    assert play.workers == [1, 2, 3]
    play.run()
    assert not play.all(Tell)
    play.ask(4)
    assert play.all(Tell) == [Tell([1, 2, 3], ADDED)]
    play.ask(3, 2, 1)
    assert play.workers == [1, 2, 3, 4]


def test_a_replacement_that_is_there_in_time_is_in_the_next_round() -> None:
    play = Play({"a": 2}, least=1)
    play.begin()
    play.end(0)
    play.ask(2)
    assert not play.all(Tell)
    play.ask(1)
    assert play.workers == [1, 2]


def test_several_newcomers_are_told_of_together() -> None:
    play = Play({"a": 2})
    play.begin()
    play.find({"a": 2, "b": 2})
    play.ask(2)
    assert not play.all(Tell)
    play.ask(3)
    assert play.all(Tell) == [Tell([0, 1], ADDED)]


def test_a_slow_newcomer_does_not_hold_up_others_for_long() -> None:
    play = Play({"a": 2})
    play.begin()
    play.find({"a": 2, "b": 2})
    play.ask(2)
    play.wait(GATHER_SECONDS)
    assert play.all(Tell) == [Tell([0, 1], ADDED)]
    play.ask(0, 1)
    assert play.workers == [0, 1, 2]


def test_workers_of_a_host_that_is_gone_are_dismissed_at_the_next_round() -> None:
    play = Play({"a": 2, "b": 2})
    play.begin()
    play.find({"b": 2})
    assert play.all(Tell) == [Tell([0, 1, 2, 3], REMOVED)]
    play.ask(0, 1, 2, 3)
    assert play.workers == [2, 3] and [d.worker for d in play.all(Dismiss)] == [0, 1]
    assert play.round is not None and not play.round.is_fresh
    play.run()
    assert not play.job.is_over and not any(s.worker > 3 for s in play.all(Start))


def test_a_member_that_dies_while_others_leave_makes_the_round_a_fresh_one() -> None:
    play = Play({"a": 2, "b": 2}, least=1)
    play.begin()
    play.find({"b": 2})
    play.end(3)
    play.ask(0, 1, 2)
    assert play.workers == [2] and play.round is not None and play.round.is_fresh


def test_hosts_that_are_replaced_at_once_hand_the_state_over_first() -> None:
    play = Play({"a": 2})
    play.begin()
    play.find({"b": 2})
    assert not play.all(Tell), "nobody else has the state"
    play.ask(2, 3)
    assert play.all(Tell) == [Tell([0, 1], ADDED)]
    play.ask(0, 1)
    assert play.workers == [0, 1, 2, 3] and play.round is not None and play.round.is_fresh
    play.run()
    assert play.all(Tell)[-1] == Tell([0, 1, 2, 3], REMOVED)
    play.ask(0, 1, 2, 3)
    assert play.workers == [2, 3]


def test_a_host_that_is_gone_is_kept_where_others_do_not_suffice() -> None:
    play = Play({"a": 1, "b": 1})
    play.begin()
    play.find({"b": 1})
    assert not play.all(Tell) and not play.all(Dismiss)
    play.end(1)  # its replacement is not there yet
    play.ask(0)
    assert play.round is not None and play.round.number == 1
    play.ask(2)
    assert play.workers == [0, 2]


def test_workers_that_only_start_on_a_host_that_is_gone_are_stopped() -> None:
    play = Play({"a": 2})
    play.begin()
    play.find({"a": 2, "b": 2})
    play.ask(2)
    play.find({"a": 2})
    assert [d.worker for d in play.all(Dismiss)] == [2]
    assert [s.worker for s in play.all(Stop)] == [3]
    assert not play.all(Tell)


def test_fewer_slots_of_a_host_are_fewer_workers() -> None:
    play = Play({"a": 3})
    play.begin()
    play.find({"a": 2})
    play.ask(0, 1, 2)
    assert play.workers == [0, 1]


def test_a_member_that_never_asks_counts_as_lost() -> None:
    play = Play({"a": 3})
    play.begin()
    play.end(0)
    play.ask(1)
    play.wait(STRAGGLER_SECONDS - 1)
    assert not play.all(Stop) and play.round is not None and play.round.number == 1
    play.ask(3)
    play.wait(2.0)
    assert [s.worker for s in play.all(Stop)] == [2]
    assert play.workers == [1, 3]


def test_too_few_ranks_wait_for_the_time_limit_and_end_with_one_sentence() -> None:
    play = Play({"a": 2}, timeout_s=60.0)
    play.begin()
    play.find({"a": 1})  # slot 1 has gone
    play.end(1)
    play.ask(0)
    play.wait(59.0)
    assert not play.all(End)
    play.wait(2.0)
    assert play.last.code == 1
    assert "after 60 s there are 1 of at least 2 ranks (--min-np)" in play.last.text


def test_too_few_ranks_go_on_when_others_come_in_time() -> None:
    play = Play({"a": 2}, timeout_s=60.0)
    play.begin()
    play.find({"a": 1})
    play.end(1)
    play.ask(0)
    play.wait(50.0)
    play.find({"a": 1, "b": 1})
    play.ask(2)
    assert play.workers == [0, 2]
    play.run()
    play.wait(50.0)
    assert not play.all(End)


def test_fixed_hosts_of_which_too_few_are_left_end_the_job_at_once() -> None:
    play = Play(script="", hosts={"a": 1, "b": 1}, least=2)
    play.find({"a": 1, "b": 1})
    play.begin()
    play.end(1)
    play.ask(0)
    play.end(2)
    play.end(3)
    assert "b is left out: a slot of it has failed 3 times in a row" in play.all(Say)[-1].text
    assert "the hosts that are left have room for 1 of at least 2 ranks" in play.last.text


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_more_resets_than_allowed_end_the_job(limit: int) -> None:
    play = Play({"a": 4}, least=1, reset_limit=limit)
    play.begin()
    for reset in range(limit + 1):
        assert not play.all(End)
        play.end(play.workers[0])
        play.ask(*play.workers[1:])
        play.run() if reset < limit else None
    assert play.last.code == 1
    assert f"reset more than {limit} times (--reset-limit)" in play.last.text


def test_when_all_of_a_round_have_failed_the_first_one_ends_the_job() -> None:
    play = Play({"a": 2})
    play.begin()
    play.end(1, record={**FAILED, "code": 7})
    play.end(0, record=FAILED)
    assert play.last.code == 7 and play.last.failure is not None
    assert play.last.failure["rank"] == 1 and play.last.failure["tail"] == ["an error"]
    assert "no rank is left that has the state" in play.all(Say)[-1].text


def test_newcomers_do_not_save_a_job_whose_state_is_lost() -> None:
    play = Play({"a": 2}, least=1)
    play.begin()
    play.end(0)
    play.ask(2)
    play.end(1)
    assert play.last.failure is not None


@pytest.mark.parametrize("how", ["committed", "sent", ""])
def test_a_newcomer_has_the_state_once_it_was_sent_it_or_it_was_committed(how: str) -> None:
    play = Play({"a": 2}, least=1)
    play.begin()
    play.job.committed(0, 1)
    play.end(1)
    play.ask(2, 0)
    assert play.workers == [0, 2]
    play.run()
    if how == "committed":
        play.job.committed(2, 2)
    elif how == "sent":
        play.job.has_state(2, 2)
    play.end(0)
    if how:
        play.ask(2)
        assert play.workers == [2]
    else:
        assert play.last.failure is not None
        assert "no rank is left that has the state" in play.all(Say)[-1].text


def test_newcomers_that_wait_already_do_not_go_on_without_the_state() -> None:
    play = Play({"a": 2}, least=1)
    play.begin()
    play.job.committed(0, 1)
    play.end(1)
    play.ask(2, 0)
    play.ask(2)  # the round of the two has broken, before the newcomer was sent the state
    play.end(0)
    assert play.last.failure is not None
    assert [each.workers for each in play.all(Settle)] == [[0, 1], [0, 2]]


def test_a_job_that_never_commits_has_no_state_to_lose() -> None:
    play = Play({"a": 2}, least=1)
    play.begin()
    play.end(1)
    play.ask(2, 0)
    play.end(0)
    play.ask(2)
    assert play.workers == [2]


def test_a_script_that_fails_everywhere_ends_with_its_first_rank() -> None:
    play = Play({"a": 3})
    play.end(2, 0, 1, record=FAILED)
    assert play.last.code == 3 and play.last.failure is not None
    assert len(play.all(Start)) == 3


def test_a_slot_that_fails_at_the_start_is_begun_again_when_others_work() -> None:
    play = Play({"a": 2})
    play.end(0, record=FAILED)
    assert len(play.all(Start)) == 2
    play.ask(1)
    assert play.all(Start)[-1].worker == 2
    play.ask(2)
    assert play.workers == [2, 1]


def test_a_slot_that_fails_again_and_again_leaves_its_host_out_unless_the_job_gets_on() -> None:
    def lose(play: Play) -> None:
        play.end(play.workers[-1])
        play.ask(*play.workers[:-1])
        play.run()
        (newcomer,) = [each for each in play.alive if each not in play.workers]
        play.ask(newcomer)
        play.ask(*play.workers)
        play.run()

    for gets_on in (True, False):
        play = Play({"a": 2, "b": 1})
        play.begin()
        for _ in range(2):
            lose(play)
            if gets_on:
                play.job.committed(play.workers[0], play.job.round)
        play.end(play.workers[-1])
        assert play.all(Start)[-1].host == "b"
        assert ("b" in play.alive.values()) == gets_on


def test_a_script_that_has_ended_ends_the_job_when_all_others_have() -> None:
    play = Play({"a": 3})
    play.begin()
    play.end(0, record={"code": 0})
    assert not play.all(End) and len(play.all(Start)) == 3
    play.end(1, 2, record={"code": 0})
    assert play.last == End(0)


def test_a_rank_that_dies_at_the_end_leaves_the_rest_to_the_others() -> None:
    play = Play({"a": 4})
    play.begin()
    play.end(0, record={"code": 0})
    play.end(1)
    play.ask(2, 3)
    assert play.workers == [2, 3] and len(play.all(Start)) == 4
    play.run()
    play.end(2, 3, record={"code": 0})
    assert play.last == End(0)


def test_nobody_is_killed_who_is_busy_with_the_end_of_its_script() -> None:
    play = Play({"a": 4})
    play.begin()
    play.end(0, record={"code": 0})
    play.end(1)
    play.ask(2)
    play.wait(STRAGGLER_SECONDS + 1)
    assert not play.all(Stop) and play.workers == [2]
    play.end(2, record={"code": 0})
    assert not play.all(End)
    play.end(3, record={"code": 0})
    assert play.last == End(0)


def test_the_last_rank_that_fails_at_the_end_fails_the_job() -> None:
    play = Play({"a": 2})
    play.begin()
    play.end(0, record={"code": 0})
    play.end(1, record=FAILED)
    assert play.last.code == 3


def test_ranks_that_never_meet_though_none_dies_end_the_job() -> None:
    play = Play({"a": 2})
    play.begin()
    for number in range(MOST_UNFORMED):
        assert not play.all(End)
        play.ask(0, 1, why="no way between the hosts")
        assert number == MOST_UNFORMED - 1 or play.round is not None
    assert "the ranks did not meet: no way between the hosts" in play.last.text


def test_a_worker_that_dies_while_the_ranks_meet_costs_one_round() -> None:
    play = Play({"a": 3})
    play.ask(0, 1, 2)
    play.end(2)
    assert play.all(Lose)[-1].workers == [0, 1]
    play.ask(0, 1, why="rank 2 has left the job")
    assert play.workers == [0, 1] and not play.all(End)


def test_a_lost_line_counts_as_the_end_and_the_process_is_stopped() -> None:
    play = Play({"a": 3})
    play.begin()
    play.job.lost(1, "the connection to it has ended", play.now)
    play.take()
    assert [s.worker for s in play.all(Stop)] == [1]
    play.ask(0, 2)
    assert play.workers == [0, 2]
    play.ask(1)
    assert [d.worker for d in play.all(Dismiss)] == [1]


def test_the_time_until_training_goes_on_is_said() -> None:
    play = Play({"a": 3})
    play.begin()
    play.end(1)
    play.now += 2.5
    play.ask(0, 2)
    play.run()
    text = play.all(Say)[-1].text
    assert text == "2 ranks together again 2.5 s after worker 1 (rank 1, a) was lost"


@given(st.randoms(use_true_random=False), st.integers(1, 3))
@settings(max_examples=150, deadline=None)
def test_whatever_happens_the_job_goes_on_or_says_why_not(random: Any, least: int) -> None:
    """Random ends, newcomers, hosts and delays: rounds make sense, and nobody waits for ever."""
    play = Play({"a": 3, "b": 2}, first=3, least=least, most=6, timeout_s=100.0)
    has_state: set[int] = set()
    settled, committed = 0, False
    for _ in range(60):
        if play.job.is_over:
            break
        act = random.choice(["ask", "ask", "ask", "end", "find", "wait", "run", "commit"])
        if act == "ask" and play.alive:
            play.ask(random.choice(list(play.alive)))
        elif act == "end" and play.alive and random.random() < 0.4:
            play.end(random.choice(list(play.alive)))
        elif act == "find":
            hosts = {name: random.randint(0, 3) for name in "abc"}
            play.find(hosts)
        elif act == "wait":
            play.wait(random.choice([0.5, 20.0]))
        elif act == "run" and play.round is not None:
            play.run()
        elif act == "commit" and play.round is not None:
            play.job.committed(play.workers[0], play.job.round)
            has_state |= set(play.workers)
            committed = True
        for each in play.all(Settle)[settled:]:
            assert each.number == settled + 1
            assert len(each.workers) == len(set(each.workers)) <= 6
            assert len(each.workers) >= least
            if each.number == 1:
                has_state = set(each.workers)
            assert each.workers[0] in has_state or not committed
            assert each.is_fresh or set(each.workers) <= has_state
            settled += 1
    play.find({"a": 3})
    for _ in range(400):  # those that live do what is asked of them
        if play.job.is_over:
            break
        play.ask(*list(play.alive))
        if play.round is not None and all(each in play.alive for each in play.workers):
            play.run()
            play.job.committed(play.workers[0], play.job.round)
            if len(play.alive) == len(play.workers):
                break
        play.wait(1.0)
    else:
        raise AssertionError(f"it waits for ever: {play.job.__dict__}")
