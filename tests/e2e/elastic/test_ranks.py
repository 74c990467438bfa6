"""Elastic jobs by the command line: ranks die, hosts come and go, training goes on."""

from __future__ import annotations

import signal

import pytest

from e2e.commands import Commands, wait_until
from e2e.elastic.running import Running

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank_costs_at_most_one_commit_and_is_replaced(
    commands: Commands, victim: int
) -> None:
    job = Running(commands, ["-np", "3", "--min-np", "2"], kind="torch")
    job.wait_for_step(10, size=3)
    job.kill(victim)
    job.wait_for_step(11, size=2)
    job.wait_for_step(30, size=3)
    job.stop()
    code, err = job.result()
    assert code == 0, err
    job.check_weights(3)
    steps = [(line["step"], line["size"]) for line in job.lines("step")]
    again = next(i for i, (_, size) in enumerate(steps) if size == 2)
    assert 0 <= steps[again - 1][0] + 1 - steps[again][0] <= 4, "one commit is 4 steps"
    assert f"(rank {victim}, localhost) is gone: ended by signal 9 (SIGKILL); 2 ranks left" in err
    assert "2 ranks together again" in err
    workers = {line["rank"]: line["worker"] for line in job.lines("end")}
    assert sorted(workers.values()) == sorted({0, 1, 2, 3} - {victim})
    assert workers[0] != 3, "rank 0 has the state"


def test_hosts_that_are_found_join_and_those_that_vanish_leave(commands: Commands) -> None:
    job = Running(commands, ["-np", "2", "--min-np", "1"], hosts="localhost:2")
    job.wait_for_step(5, size=2)
    job.set_hosts("localhost:2,127.0.0.1:1")
    job.wait_for_step(10, size=3)
    job.set_hosts("127.0.0.1:1")
    job.wait_for_step(20, size=1)
    job.set_hosts("127.0.0.1:1,localhost:1")
    job.wait_for_step(30, size=2)
    job.stop()
    code, err = job.result()
    assert code == 0, err
    job.check_weights(2)
    ends = {line["rank"]: line["host"] for line in job.lines("end")}
    assert ends == {0: "127.0.0.1", 1: "localhost"}
    assert "Traceback" not in err and "is gone" not in err


def test_a_change_before_the_ranks_train_is_not_missed(commands: Commands) -> None:
    environ = {"SECONDS_BEFORE_TRAINING": "4"}
    flags = ["-np", "2", "--min-np", "1"]
    job = Running(commands, flags, hosts="localhost:2", environ=environ)
    wait_until(lambda: len(job.lines("up")) == 2)
    job.set_hosts("localhost:1")
    job.wait_for_step(5, size=1)
    job.stop()
    code, err = job.result()
    assert code == 0, err


def test_below_the_least_number_of_ranks_it_waits_and_then_ends(commands: Commands) -> None:
    flags = ["-np", "2", "--min-np", "2", "--elastic-timeout", "3"]
    job = Running(commands, flags, hosts="localhost:2")
    job.wait_for_step(5)
    job.set_hosts("localhost:1")
    job.wait_for_discovery()  # else the slot may be filled again, and who is there may stay
    job.kill(1)
    code, err = job.result()
    assert code == 1
    assert "after 3 s there are 1 of at least 2 ranks (--min-np): the job ends" in err


def test_a_job_ends_when_its_ranks_had_to_meet_too_often(commands: Commands) -> None:
    job = Running(commands, ["-np", "3", "--min-np", "1", "--reset-limit", "0"])
    job.wait_for_step(5)
    job.kill(1)
    code, err = job.result()
    assert code == 1 and "reset more than 0 times (--reset-limit)" in err


def test_when_all_ranks_fail_the_first_ones_last_lines_are_shown(commands: Commands) -> None:
    job = Running(commands, ["-np", "2", "--min-np", "1"])
    job.wait_for_step(5)
    (job.folder / "fail").touch()
    code, err = job.result()
    assert code == 1
    assert "was the first to fail: exit code 1; its last lines:" in err
    assert "    | RuntimeError: all ranks are told to fail" in err


def test_a_host_whose_workers_always_fail_is_left_out(commands: Commands) -> None:
    hosts = ["-H", "localhost:1,127.0.0.1:1"]
    environ = {"FAIL_ON_HOST": "127.0.0.1"}
    job = Running(
        commands, ["-np", "2", "--min-np", "1", *hosts], environ=environ, steps=100, sleep_s=0.2
    )
    code, err = job.result()
    assert code == 0, err
    assert "127.0.0.1 is left out: a slot of it has failed 3 times in a row" in err
    job.check_weights(1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_end_of_the_launcher_leaves_nothing_behind(commands: Commands, number: int) -> None:
    job = Running(commands, ["-np", "2", "--min-np", "1"])
    job.wait_for_step(5)
    job.process.send_signal(number)
    code, _ = job.result()
    assert code in (-number, 128 + number, 75)
