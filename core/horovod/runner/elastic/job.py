"""What becomes of an elastic job: a state machine without clocks, processes or sockets.

It is told what happens, and when, and answers with ``actions``. Its rules:

* The first round begins with ``first`` ranks or more, when all that were started have asked for it;
  those that are late come later.
* The next one begins when all living members of a round have asked for it, and not before there are
  ``least`` ranks. Nobody waits for replacements: they join when they are there. A member that has
  not asked ``STRAGGLER_SECONDS`` after the first one counts as lost.
* A slot whose worker fails is begun again. A host is left out when one of its slots has failed
  three times in a row; a job that gets on in between (a commit, or a minute) ends the row.
* Members are told of new workers when these have asked for a round. Workers on hosts that are no
  longer found are dismissed, as soon as enough others have the state.
* The job ends with its members: well, when none of the last round's has failed. When all of a round
  have failed, nobody has the state any more.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Mapping, Sequence
from typing import Any

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
from horovod.runner.elastic.hosts import MOST_FAILURES, HostBook
from horovod.runner.elastic.options import Elastic
from horovod.runner.elastic.workers import State, Worker, places, ranked

STRAGGLER_SECONDS = 60.0
GATHER_SECONDS = 10.0
"""So long those that are there wait for others that are only starting."""
LATE_START_SECONDS = 60.0
"""So long the first round waits for ``first`` ranks where ``least`` are there."""
GOT_ON_SECONDS = 60.0
STOP_SECONDS = 5.0
MOST_UNFORMED = 3
"""That many rounds in a row that do not come about, though nobody died, end the job."""


class ElasticJob:
    """An elastic job.

    Args:
        wanted: What the user wants.
        now: The time, in seconds, as of all calls.
        chance: For the times for which hosts are left out.

    Attributes:
        is_over: It has ended, well or not.
    """

    def __init__(self, wanted: Elastic, now: float, chance: random.Random | None = None) -> None:
        self.is_over = False
        self._wanted = wanted
        self._hosts = HostBook(wanted.cooldown_s, chance or random.Random())
        self._actions: list[Action] = []
        self._workers: dict[int, Worker] = {}
        self._next_worker = 0
        self._began = now
        self._round = 0
        self._members: set[int] = set()
        self._busy: set[int] = set()  # members of earlier rounds that only end
        self._broke = False  # a member of the round was lost
        self._told = 0
        self._has_committed = False
        self._ending = False  # a worker is through with its script
        self._failures: list[dict[str, Any]] = []  # of members, since the round began
        self._unformed = 0
        self._unformed_round = 0
        self._short_since: float | None = None
        self._lost_at: float | None = None
        self._last_lost = ""

    def take_actions(self) -> list[Action]:
        """Return what is to be done, in order; once."""
        actions, self._actions = self._actions, []
        return actions

    @property
    def round(self) -> int:
        """Number of the current round, 0 before the first."""
        return self._round

    # ---- what happens ----------------------------------------------------------------------------

    def hosts_found(self, found: Mapping[str, int], now: float) -> None:
        """Discovery has found {host: slots}."""
        self._hosts.update(found)
        self._look(now)

    def asked(self, number: int, why: str, now: float) -> None:
        """A worker asks for a round; ``why``: the one that it was to be in did not come about."""
        worker = self._workers.get(number)
        if worker is None or not worker.lives:
            self._do(Dismiss(number, "it counts as lost"))
            return
        worker.state, worker.asked_at, worker.runs = State.WAITING, now, False
        if why and worker.round == self._round and number in self._members:
            self._note_unformed(why)
        self._look(now)

    def runs(self, number: int, round_number: int, now: float) -> None:
        """The engine of a worker runs in a round."""
        worker = self._workers.get(number)
        if worker is None or round_number != self._round or worker.state != State.IN_ROUND:
            return
        worker.runs, worker.runs_since = True, now
        if all(each.runs for each in self._living_members()):
            self._unformed = 0
            if self._lost_at is not None:
                took = f"{now - self._lost_at:.2g} s after {self._last_lost} was lost"
                self._say(f"{_ranks(len(self._members))} together again {took}")
            self._lost_at = None
        self._look(now)

    def has_state(self, number: int, round_number: int) -> None:
        """A worker has taken over the state of a round."""
        if number in self._members and round_number == self._round:
            self._workers[number].has_state = True

    def committed(self, number: int, round_number: int) -> None:
        """A worker has committed a state in a round: all of that round have it, and got on."""
        if number in self._members and round_number == self._round:
            self._has_committed = True
            for each in self._members:
                self._workers[each].got_on = self._workers[each].has_state = True

    def ended(self, number: int, record: Mapping[str, Any], now: float) -> None:
        """The process of a worker has ended, or counts as lost.

        Args:
            number: The worker.
            record: As of ``rank_process``: "code", "host", "tail".
            now: The time.
        """
        worker = self._workers.get(number)
        if worker is None or worker.state == State.ENDED:
            return
        was_told = worker.state == State.LEAVING
        worker.state = State.ENDED
        code = int(record.get("code", 0))
        if code and not was_told:
            self._failed(worker, dict(record), now)
        elif not was_told:
            self._ending = True
        self._look(now)

    def lost(self, number: int, why: str, now: float) -> None:
        """Nobody hears of a worker any more, whose process may still be there."""
        worker = self._workers.get(number)
        if worker is not None and worker.lives:
            self._give_up(worker, why, now)
            self._look(now)

    def tick(self, now: float) -> None:
        """Time has passed."""
        self._look(now)

    # ---- decisions -------------------------------------------------------------------------------

    def _look(self, now: float) -> None:
        """Decide what follows from what is known."""
        if self.is_over:
            return
        self._note_progress(now)
        self._stop_unwanted(now)
        self._fill(now)
        self._give_up_stragglers(now)
        self._settle(now)
        self._announce(now)
        self._find_end(now)

    def _note_progress(self, now: float) -> None:
        for worker in self._living_members():
            if worker.runs and now - worker.runs_since >= GOT_ON_SECONDS:
                worker.got_on = True

    def _stop_unwanted(self, now: float) -> None:
        """End those on hosts that are gone, before they are members."""
        for worker in self._living():
            if self._counts(worker) or self._is_wanted(worker, now):
                continue
            if worker.state == State.WAITING:
                self._dismiss(worker)
            else:
                self._stop(worker)

    def _fill(self, now: float) -> None:
        """Start workers in free slots."""
        usable = self._hosts.usable(now)
        if self._ending or not self._may_start(usable, now):
            return
        taken = {(w.host, w.slot) for w in self._workers.values() if w.state != State.ENDED}
        count = sum(self._is_wanted(worker, now) for worker in self._living())
        started: list[Worker] = []
        for host, slots in usable.items():
            for slot in range(slots):
                if (host, slot) in taken or (self._wanted.most or count + 1) <= count:
                    continue
                worker = Worker(number=self._next_worker, host=host, slot=slot)
                self._next_worker += 1
                self._workers[worker.number] = worker
                started.append(worker)
                count += 1
        if not started:
            return
        expected = ranked(
            [each for each in self._living() if self._is_wanted(each, now)], list(usable)
        )
        place_of = dict(zip((each.number for each in expected), places(expected), strict=True))
        for worker in started:
            place = place_of[worker.number]
            self._do(Start(worker.number, worker.host, worker.slot, place))

    def _may_start(self, usable: Mapping[str, int], now: float) -> bool:
        if self._round > 0:
            return True
        if self._failures:  # does the script work at all?
            return any(each.state == State.WAITING for each in self._living())
        room = sum(usable.values())
        late = now - self._began > self._wanted.timeout_s
        return room >= (self._wanted.least if late else self._wanted.first)

    def _settle(self, now: float) -> None:
        """Begin the next round, if it is time."""
        waiting = [each for each in self._living() if each.state == State.WAITING]
        if not waiting or not (self._is_first_due(waiting, now) or self._is_next_due()):
            return
        chosen = self._choose(waiting, now)
        if self._round > 0 and not self._ending and not self._have_state(chosen):
            return  # the job is at its end
        if len(chosen) < self._wanted.least and not self._ending:
            self._short_since = now if self._short_since is None else self._short_since
            return
        limit = self._wanted.reset_limit
        if limit is not None and self._round > limit:
            self._end(f"the job was to be reset more than {limit} times (--reset-limit)")
            return
        self._begin(ranked(chosen, list(self._hosts.found)), waiting)

    def _begin(self, members: Sequence[Worker], waiting: Sequence[Worker]) -> None:
        numbers = [each.number for each in members]
        is_fresh = self._broke or not all(each.has_state for each in members)
        for each in waiting:
            if each.number in self._members and each.number not in numbers:
                self._dismiss(each)
        self._round += 1
        self._members = set(numbers)
        self._broke, self._told, self._failures, self._short_since = False, 0, [], None
        for rank, worker in enumerate(members):
            worker.state, worker.rank, worker.round = State.IN_ROUND, rank, self._round
            worker.got_on = False
            worker.has_state = worker.has_state or self._round == 1
        self._do(Settle(self._round, numbers, places(members), is_fresh))
        if self._round > 1:
            hosts = list(dict.fromkeys(each.host for each in members))
            self._say(f"round {self._round}: {_ranks(len(members))} on {', '.join(hosts)}")

    def _is_first_due(self, waiting: Sequence[Worker], now: float) -> bool:
        if self._round > 0:
            return False
        starting = any(each.state == State.STARTING for each in self._living())
        since = now - min(each.asked_at for each in waiting)
        if not starting:
            return True
        enough = len(waiting) >= self._wanted.first
        return since >= (GATHER_SECONDS if enough else LATE_START_SECONDS)

    def _is_next_due(self) -> bool:
        living = self._living_members()
        all_ask = all(each.state == State.WAITING for each in living)
        return self._round > 0 and bool(living) and all_ask

    def _choose(self, waiting: Sequence[Worker], now: float) -> list[Worker]:
        """Return who is in the next round, in no order; nobody where that cannot be.

        Members come first, as they have the state. One on a host that is gone is kept only where
        without it there would not be enough, or nobody with the state.
        """
        members = [each for each in waiting if each.number in self._members]
        good = [each for each in members if self._is_wanted(each, now)]
        others = [each for each in waiting if each.number not in self._members]
        if self._ending and self._round > 0:
            return members
        enough = len(good) + len(others) >= self._wanted.least
        suffices = enough and (self._round == 0 or self._have_state(good))
        kept = good if suffices else members
        kept = sorted(kept, key=lambda each: (not each.has_state, each.rank))
        others = sorted(others, key=lambda each: each.number)
        return [*kept, *others][: self._wanted.most]

    def _announce(self, now: float) -> None:
        """Tell the members of a round that runs what a new one would change."""
        members = self._living_members()
        if self._ending or self._broke or not members or not all(each.runs for each in members):
            return  # they will ask anyway, or do not train yet
        kind = 0
        good = [each for each in members if self._is_wanted(each, now)]
        others = [each for each in self._living() if each.number not in self._members]
        waiting = [each for each in others if each.state == State.WAITING]
        late = any(now - each.asked_at >= GATHER_SECONDS for each in waiting)
        starting = any(each.state == State.STARTING for each in others)
        suffices = len(good) >= self._wanted.least and self._have_state(good)
        if len(good) < len(members) and suffices:
            kind |= REMOVED
        has_room = self._wanted.most is None or len(good) < self._wanted.most
        if waiting and has_room and (late or not starting):
            kind |= ADDED
        if fresh := kind & ~self._told:
            self._told |= fresh
            self._do(Tell([each.number for each in members], fresh))

    def _give_up_stragglers(self, now: float) -> None:
        """Do without members that do not ask for the next round though others have, for long."""
        members = self._living_members()
        asked = [each.asked_at for each in members if each.state == State.WAITING]
        if not asked or now - min(asked) < STRAGGLER_SECONDS:
            return
        for worker in members:
            if worker.state == State.WAITING:
                continue
            if self._ending:  # it is busy with the end of its script
                self._members.discard(worker.number)
                self._busy.add(worker.number)
                continue
            why = f"it has not asked for the next round {STRAGGLER_SECONDS:g} s after another one"
            self._give_up(worker, why, now)

    def _find_end(self, now: float) -> None:
        if self.is_over:
            return
        short = self._short_since
        if short is not None and now - short > self._wanted.timeout_s:
            there = sum(each.state == State.WAITING for each in self._living())
            self._end(
                f"after {self._wanted.timeout_s:g} s there are {there} of at least "
                f"{self._wanted.least} ranks (--min-np): the job ends (--elastic-timeout)"
            )
            return
        room = sum(self._hosts.usable(now).values())
        is_fixed = not self._wanted.script and self._wanted.cooldown_s is None
        if short is not None and is_fixed and room < self._wanted.least and not self._ending:
            self._end(
                f"the hosts that are left have room for {room} of at least {self._wanted.least} "
                "ranks (--min-np): the job ends"
            )
            return
        counting = [each for each in self._living() if self._round == 0 or self._counts(each)]
        if counting and (self._round == 0 or self._ending or self._have_state(counting)):
            return
        failure = next(iter(self._failures), None)
        if failure is not None and self._round > 0 and not self._ending:
            self._say("no rank is left that has the state of the job")
        if self._workers:
            self._end("", failure)
        elif now - self._began > self._wanted.timeout_s:
            self._end(
                f"after {self._wanted.timeout_s:g} s the hosts have room for {room} of at least "
                f"{self._wanted.least} ranks (--min-np): the job ends (--elastic-timeout)"
            )

    # ---- below -----------------------------------------------------------------------------------

    def _failed(self, worker: Worker, record: dict[str, Any], now: float) -> None:
        """Take note that a worker has ended by an error, or counts as lost."""
        is_member = worker.number in self._members
        how = _how(record)
        if is_member or self._round == 0:
            rank = worker.rank if worker.rank >= 0 else int(record.get("rank", 0))
            self._failures.append({**record, "rank": rank, "told": False})
        seconds = self._hosts.failed(worker.host, worker.slot, got_on=worker.got_on, now=now)
        left = [each for each in self._living_members() if each is not worker]
        then = f"; {_ranks(len(left))} left" if is_member and self._round > 0 else ""
        if left or self._round > 0:
            self._say(f"{worker} is gone: {how}{then}")
        if seconds is not None:
            until = "" if seconds == float("inf") else f" for {seconds:.0f} s"
            self._say(
                f"{worker.host} is left out{until}: a slot of it has failed {MOST_FAILURES} times "
                "in a row"
            )
        if is_member and self._round > 0:
            self._broke = True
            if self._lost_at is None:  # others may have felt it before we heard of it
                felt = [each.asked_at for each in left if each.state == State.WAITING]
                self._lost_at, self._last_lost = min([now, *felt]), str(worker)
            running = [each.number for each in left if each.state == State.IN_ROUND]
            self._do(Lose(self._round, running, f"{worker} is gone: {how}"))

    def _give_up(self, worker: Worker, why: str, now: float) -> None:
        self._stop(worker)
        record = {"rank": worker.rank, "host": worker.host, "code": 1, "tail": [why], "why": why}
        self._failed(worker, record, now)

    def _note_unformed(self, why: str) -> None:
        """End the job where round after round does not come about, though nobody dies."""
        if self._broke or self._unformed_round == self._round:
            return
        self._unformed_round = self._round
        self._unformed += 1
        self._broke = True
        living = [each.number for each in self._living_members() if each.state == State.IN_ROUND]
        self._do(Lose(self._round, living, f"the ranks of round {self._round} do not meet: {why}"))
        if self._unformed >= MOST_UNFORMED:
            self._end(f"{MOST_UNFORMED} times in a row the ranks did not meet: {why}")

    def _dismiss(self, worker: Worker) -> None:
        worker.state = State.LEAVING
        self._do(Dismiss(worker.number, f"{worker.host} is no longer a host of the job"))

    def _stop(self, worker: Worker) -> None:
        worker.state = State.LEAVING
        self._do(Stop(worker.number, STOP_SECONDS))

    def _end(self, text: str, failure: Mapping[str, Any] | None = None) -> None:
        self.is_over = True
        code = int(failure["code"]) if failure else 0
        code = 128 - code if code < 0 else code
        self._do(End(code or int(bool(text)), text, failure))

    def _is_wanted(self, worker: Worker, now: float) -> bool:
        return worker.slot < self._hosts.usable(now).get(worker.host, 0)

    def _have_state(self, workers: Sequence[Worker]) -> bool:
        """Return whether one of ``workers`` has the state of the job, if it has any."""
        return any(each.has_state or not self._has_committed for each in workers)

    def _counts(self, worker: Worker) -> bool:
        """Return whether the job goes on as long as ``worker`` does."""
        return worker.number in self._members or worker.number in self._busy

    def _living(self) -> list[Worker]:
        return [each for each in self._workers.values() if each.lives]

    def _living_members(self) -> list[Worker]:
        return [each for each in self._living() if each.number in self._members]

    def _say(self, text: str) -> None:
        self._do(Say(text))

    def _do(self, action: Action) -> None:
        self._actions.append(action)


def _ranks(number: int) -> str:
    return f"{number} rank" + ("" if number == 1 else "s")


def _how(record: Mapping[str, Any]) -> str:
    if "why" in record:
        return str(record["why"])
    code = int(record["code"])
    if code >= 0:
        return f"exit code {code}"
    return f"ended by signal {-code} ({signal.Signals(-code).name})"
