"""A worker's line to the driver's desk: proven, one for each worker, and heard when it ends."""

from __future__ import annotations

import contextlib
import os
import queue
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from horovod.common import rounds as client
from horovod.common.rounds import ADDED, OutOfJob, Rounds
from horovod.common.tcp_world import MeetingError
from horovod.runner.elastic.desk import Desk

KEY = "the key of this job"
LIMIT_S = 30.0
PLACE = {"RANK": 1, "SIZE": 2}


class Driver:
    """A desk, and what it has heard."""

    def __init__(self) -> None:
        self.heard: queue.Queue[tuple[int, Mapping[str, Any]]] = queue.Queue()
        self.ended: queue.Queue[tuple[int, str]] = queue.Queue()
        self.desk = Desk(
            KEY,
            "127.0.0.1",
            lambda worker, content: self.heard.put((worker, content)),
            lambda worker, why: self.ended.put((worker, why)),
        )

    def hear(self) -> tuple[int, Mapping[str, Any]]:
        return self.heard.get(timeout=LIMIT_S)

    def environ(self, worker: int, key: str = KEY) -> dict[str, str]:
        return {
            "HOROVOD_ELASTIC": "1",
            "HOROVOD_ELASTIC_WORKER": str(worker),
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(self.desk.port),
            "HOROVOD_SECRET_KEY": key,
        }


class Engine:
    """What ``abort`` was told."""

    def __init__(self) -> None:
        self.aborted: queue.Queue[str] = queue.Queue()

    def abort(self, reason: str) -> None:
        self.aborted.put(reason)


@pytest.fixture
def driver() -> Iterator[Driver]:
    there = Driver()
    yield there
    there.desk.close()


NewWorker = Callable[[], Rounds]


@pytest.fixture
def new_worker(driver: Driver) -> Iterator[NewWorker]:
    """Make a worker's end of a line; it is closed after the test."""
    made: list[Rounds] = []

    def make() -> Rounds:
        made.append(Rounds())
        return made[-1]

    yield make
    for each in made:
        each.forget()


def ask(driver: Driver, rounds: Rounds, worker: int, answer: Mapping[str, Any]) -> client.Round:
    """Let a worker ask, and answer it."""
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(rounds.ask, "", driver.environ(worker))
        assert driver.hear()[0] == worker
        driver.desk.say(worker, answer)
        return asked.result(LIMIT_S)


def test_a_worker_is_told_its_round_and_asks_for_the_next_on_the_same_line(
    driver: Driver, new_worker: NewWorker
) -> None:
    rounds = new_worker()
    for number in (1, 2):
        answer = {"round": number, "place": PLACE, "port": 7, "fresh": number == 1}
        found = ask(driver, rounds, 5, answer)
        assert found == rounds.current
        assert (found.number, found.rank, found.size, found.port) == (number, 1, 2, 7)
        assert found.is_fresh == (number == 1)
    with pytest.raises(OutOfJob) as out:
        ask(driver, rounds, 5, {"out": "its host is gone"})
    assert out.value.code == 0 and driver.ended.empty()


def test_what_a_worker_says_arrives_and_a_commit_only_once_a_round(
    driver: Driver, new_worker: NewWorker
) -> None:
    rounds = new_worker()
    ask(driver, rounds, 0, {"round": 3, "place": PLACE, "port": 7, "fresh": True})
    rounds.runs(Engine())
    rounds.committed()
    rounds.committed()
    rounds.left()
    said = [driver.hear()[1] for _ in range(3)]
    assert said == [{"runs": 3}, {"commit": 3}, {"left": 3}]


def test_news_of_hosts_reach_who_listens(driver: Driver, new_worker: NewWorker) -> None:
    rounds, news = new_worker(), queue.Queue[tuple[float, int]]()

    def tell(at: float, kind: int) -> None:
        news.put((at, kind))

    rounds.listen(tell)
    ask(driver, rounds, 0, {"round": 1, "place": PLACE, "port": 7, "fresh": True})
    driver.desk.say(0, {"hosts": ADDED, "time": 12.5})
    assert news.get(timeout=LIMIT_S) == (12.5, ADDED)
    rounds.ignore(tell)
    driver.desk.say(0, {"hosts": ADDED, "time": 13.5})
    ask(driver, rounds, 0, {"round": 2, "place": PLACE, "port": 7, "fresh": True})
    assert news.empty()


def test_who_listens_late_hears_what_has_come_in_this_round(
    driver: Driver, new_worker: NewWorker
) -> None:
    rounds, heard = new_worker(), queue.Queue[tuple[float, int]]()
    rounds.listen(lambda at, kind: heard.put((at, kind)))
    for number in (1, 2):
        ask(driver, rounds, 0, {"round": number, "place": PLACE, "port": 7, "fresh": True})
        driver.desk.say(0, {"hosts": ADDED, "time": float(number)})
        heard.get(timeout=LIMIT_S)
    late: list[tuple[float, int]] = []
    rounds.listen(lambda at, kind: late.append((at, kind)))
    assert late == [(2.0, ADDED)]


def test_the_engine_of_a_round_ends_with_its_lost_rank_and_no_other(
    driver: Driver, new_worker: NewWorker
) -> None:
    rounds, first, second = new_worker(), Engine(), Engine()
    for number, engine in ((1, first), (2, second)):
        ask(driver, rounds, 0, {"round": number, "place": PLACE, "port": 7, "fresh": True})
        rounds.runs(engine)
        driver.hear()
    driver.desk.say(0, {"lost": 1, "why": "late news"})
    driver.desk.say(0, {"lost": 2, "why": "rank 0 is gone"})
    assert second.aborted.get(timeout=LIMIT_S) == "rank 0 is gone"
    assert first.aborted.empty() and second.aborted.empty()


def test_a_rank_that_is_lost_before_the_engine_runs_ends_it_too(
    driver: Driver, new_worker: NewWorker
) -> None:
    rounds, engine, news = new_worker(), Engine(), queue.Queue[int]()
    rounds.listen(lambda at, kind: news.put(kind))
    ask(driver, rounds, 0, {"round": 1, "place": PLACE, "port": 7, "fresh": True})
    driver.desk.say(0, {"lost": 1, "why": "rank 0 is gone"})
    driver.desk.say(0, {"hosts": ADDED, "time": 1.0})
    news.get(timeout=LIMIT_S)  # what came before has been heard, too
    rounds.runs(engine)
    assert engine.aborted.get_nowait() == "rank 0 is gone"


def test_without_its_line_a_worker_ends_its_engine_and_asks_in_vain(
    driver: Driver, new_worker: NewWorker
) -> None:
    rounds, engine = new_worker(), Engine()
    ask(driver, rounds, 0, {"round": 1, "place": PLACE, "port": 7, "fresh": True})
    rounds.runs(engine)
    driver.desk.close()
    assert "the line to the launcher has ended" in engine.aborted.get(timeout=LIMIT_S)
    with pytest.raises(MeetingError, match="the line to the launcher has ended"):
        rounds.ask("", driver.environ(0))


def test_who_waits_for_an_answer_learns_that_the_launcher_is_gone(
    driver: Driver, new_worker: NewWorker
) -> None:
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(new_worker().ask, "", driver.environ(0))
        driver.hear()
        driver.desk.close()
        with pytest.raises(MeetingError, match="the line to the launcher has ended"):
            asked.result(LIMIT_S)


def test_the_end_of_a_worker_is_heard(driver: Driver, new_worker: NewWorker) -> None:
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            new_worker().ask("", driver.environ(4))
        os._exit(0)
    driver.hear()
    driver.desk.say(4, {"round": 1, "place": PLACE, "port": 7, "fresh": True})
    os.waitpid(child, 0)
    assert driver.ended.get(timeout=LIMIT_S) == (4, "")


def test_strangers_and_second_processes_are_turned_away(
    driver: Driver, new_worker: NewWorker
) -> None:
    ask(driver, new_worker(), 0, {"round": 1, "place": PLACE, "port": 7, "fresh": True})
    with pytest.raises(MeetingError, match=r"worker 0 .* has its line to the launcher already"):
        new_worker().ask("", driver.environ(0))
    with pytest.raises(MeetingError, match="does not have this job's key"):
        new_worker().ask("", driver.environ(1, key="another key"))
    ask(driver, new_worker(), 1, {"round": 1, "place": PLACE, "port": 7, "fresh": True})


def test_a_forked_child_lets_go_of_the_line_and_cannot_ask(
    driver: Driver, new_worker: NewWorker
) -> None:
    rounds = new_worker()
    ask(driver, rounds, 0, {"round": 1, "place": PLACE, "port": 7, "fresh": True})
    child = os.fork()
    if child == 0:
        rounds.forget()
        with contextlib.suppress(MeetingError):
            rounds.ask("", driver.environ(0))
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    ask(driver, rounds, 0, {"round": 2, "place": PLACE, "port": 7, "fresh": True})
    assert driver.ended.empty()


@pytest.mark.parametrize(
    ("environ", "is_one"),
    [
        ({"HOROVOD_ELASTIC": "1", "HOROVOD_ELASTIC_WORKER": "0"}, True),
        ({"HOROVOD_ELASTIC": "1"}, False),
        ({"HOROVOD_ELASTIC_WORKER": "0"}, False),
        ({}, False),
    ],
)
def test_a_worker_of_an_elastic_job_knows_it(environ: dict[str, str], is_one: bool) -> None:
    assert client.is_elastic(environ) == is_one
