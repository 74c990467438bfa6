"""The probe of NCCL's start-up settings, with helpers that need no GPU."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.nccl import probe as room
from autotune.nccl import settle as settling
from autotune.nccl.probe import SIZES, Turns, choose, plan_turns, probe
from autotune.nccl.settle import settle
from autotune.nccl.start import CANDIDATES, VARIABLES, candidates

HELPER = """
import os, sys, time
gpu, rank, size, most, nccl = sys.argv[1:6]
for line in sys.stdin:
    word, *rest = line.split()
    if word == "root":
        print("id", "ab" * 128, flush=True)
    elif word == "begin":
        if os.environ.get("HANGS") == rank:
            time.sleep(60)
        if os.environ.get("FAILS") == rank:
            print("failed cuMemAlloc_v2: CUDA error 2", flush=True)
            sys.exit()
        print("ready", flush=True)
    elif word == "time":
        size, count = int(rest[0]), int(rest[1])
        faster = os.environ.get("NCCL_MIN_NCHANNELS") == "8"
        slow = float(os.environ.get("US_PER_MIB", "0"))
        us = (50.0 if faster else 100.0) + slow * (size >> 20)
        time.sleep(count * us / 1e6)
        print("us", us, flush=True)
"""


class Ranks:
    """Ranks as threads; ``exchange`` is theirs."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._barrier = threading.Barrier(size)
        self._given: list[Any] = [None] * size

    def exchange_of(self, rank: int) -> Callable[[Any], list[Any]]:
        def exchange(own: Any) -> list[Any]:
            self._given[rank] = json.loads(json.dumps(own))
            self._barrier.wait(30)
            found = list(self._given)
            self._barrier.wait(30)
            return found

        return exchange

    def run(self, body: Callable[[int, Callable[[Any], list[Any]]], Any]) -> list[Any]:
        found: list[Any] = [None] * self.size

        def one(rank: int) -> None:
            found[rank] = body(rank, self.exchange_of(rank))

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.size)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
        return found


@pytest.fixture
def helper(tmp_path: Path) -> list[str]:
    script = tmp_path / "helper.py"
    script.write_text(HELPER)
    return [sys.executable, "-I", "-S", str(script)]


TRIED = [{}, {"NCCL_MIN_NCHANNELS": "4"}, {"NCCL_MIN_NCHANNELS": "8"}]


def probed(helper: list[str], environ: dict[str, str]) -> list[Any]:
    return Ranks(2).run(
        lambda rank, exchange: probe(
            TRIED,
            exchange,
            rank=rank,
            size=2,
            gpu=rank,
            nccl="",
            environ=environ,
            command=helper,
        )
    )


def test_all_ranks_find_the_settings_that_are_faster(helper: list[str]) -> None:
    for found in probed(helper, {}):
        assert found.reason == "" and found.settings == {"NCCL_MIN_NCHANNELS": "8"}
        assert found.gain == pytest.approx(1.0)
        assert (found.default_us, found.found_us) == (300.0, 150.0)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_helper_that_fails_on_any_rank_leaves_the_defaults_on_all(
    rank: int, helper: list[str]
) -> None:
    for found in probed(helper, {"FAILS": str(rank)}):
        assert found.settings == {}
        assert found.reason == f"cuMemAlloc_v2: CUDA error 2 (rank {rank})"


def test_a_helper_that_hangs_is_not_waited_for(
    helper: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "LIMIT_S", 3.0)
    begin = time.monotonic()
    for found in probed(helper, {"HANGS": "1"}):
        assert found.settings == {} and found.reason == "a helper took longer than 3 s (rank 1)"
    assert time.monotonic() - begin < 40


def test_slow_links_are_compared_by_fewer_and_smaller_operations(
    helper: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "LIMIT_S", 6.0)
    for found in probed(helper, {"US_PER_MIB": "20000"}):  # 64 MiB in 1.3 s
        assert found.reason == "" and found.sizes == SIZES[-len(found.sizes) :] != SIZES
        assert found.seconds < 6
        assert found.default_us >= 20_000 * sum(found.sizes) >> 20


def test_links_too_slow_to_compare_anything_are_given_up_at_once(helper: list[str]) -> None:
    begin = time.monotonic()
    for found in probed(helper, {"US_PER_MIB": "300000"}):
        expected = "an operation of 4 MiB takes 1200 ms: too long for a comparison of 15 s"
        assert found.reason == expected
    assert time.monotonic() - begin < 10


def test_what_is_timed_fits_into_the_time_that_is_left() -> None:
    assert plan_turns(1_583.0, 11.0, 6) == Turns()  # sockets of one host
    assert plan_turns(4_000.0, 11.0, 5) == Turns(operations=2)  # 10 Gbit/s
    assert plan_turns(40_000.0, 11.0, 5) == Turns(sizes=SIZES[1:], rounds=5, operations=1)
    assert plan_turns(1e6, 11.0, 5) is None
    assert plan_turns(0.0, 11.0, 5) == Turns()


def test_a_gain_that_is_small_or_not_steady_is_left_alone() -> None:
    assert choose([[100, 97], [100, 96], [100, 97]]) == (0, 0.0)
    assert choose([[100, 50], [100, 200], [100, 200]]) == (0, 0.0)
    assert choose([[100, 50], [100, 50], [100, 200]]) == (1, 1.0)
    assert choose([[100]]) == (0, 0.0)


def test_what_the_user_has_set_is_no_candidates_to_change() -> None:
    for link in CANDIDATES:
        assert candidates(link, {})[0] == {}
        for one in candidates(link, {"NCCL_MIN_NCHANNELS": "2"}):
            assert "NCCL_MIN_NCHANNELS" not in one and set(one) <= set(VARIABLES)
    everything = dict.fromkeys(VARIABLES, "1")
    assert candidates("sockets", everything) == [{}]


def settled(
    monkeypatch: pytest.MonkeyPatch,
    helper: list[str],
    links: list[str],
    environ: dict[str, str],
    replayed: dict[str, str] | None = None,
) -> tuple[list[str], list[dict[str, str]]]:
    plain = settling.probe
    monkeypatch.setattr(
        settling, "probe", lambda *each, **more: plain(*each, **more, command=helper)
    )
    environs = [dict(environ) for _ in links]
    lines = Ranks(len(links)).run(
        lambda rank, exchange: settle(
            links[rank],  # type: ignore[arg-type]
            exchange,
            rank=rank,
            size=len(links),
            gpu=rank,
            hosts=1,
            nccl="/nowhere",
            environ=environs[rank],
            replayed=replayed if rank == 0 else None,
        )
    )
    monkeypatch.setattr(settling, "probe", plain)
    return lines, environs


def test_settings_are_found_once_and_remembered(
    helper: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    lines, environs = settled(monkeypatch, helper, ["shared memory"] * 2, environ)
    for line, found in zip(lines, environs, strict=True):
        assert "GB/s instead of" in line and "(+100%;" in line
        assert "the default is NCCL under these" in line
        assert found["NCCL_MIN_NCHANNELS"] == found["NCCL_MAX_NCHANNELS"] == "8"
    lines, again = settled(monkeypatch, ["/nowhere/no-helper"], ["shared memory"] * 2, environ)
    assert again == environs and "as an earlier job found them" in lines[0]


def test_all_ranks_take_what_rank_0_replays_and_what_the_user_set_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environ = {"NCCL_BUFFSIZE": "4096"}
    log = {"NCCL_BUFFSIZE": "1048576", "NCCL_MIN_NCHANNELS": "8"}
    for links in (["sockets"] * 2, ["none"] * 2, ["sockets", "nvlink"]):
        lines, environs = settled(monkeypatch, ["/nowhere/no-helper"], links, environ, log)
        assert lines == ["NCCL's start-up settings, as replayed: NCCL_MIN_NCHANNELS=8"] * 2
        assert environs == [{**environ, "NCCL_MIN_NCHANNELS": "8"}] * 2
    assert settled(monkeypatch, [], ["sockets"] * 2, log, log) == (["", ""], [log] * 2)


def test_ranks_that_differ_and_jobs_without_gpus_try_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    none = ["/nowhere/no-helper"]
    lines, environs = settled(monkeypatch, none, ["sockets", "shared memory"], environ)
    assert all("different links" in line for line in lines) and environs == [environ] * 2
    for links in (["none", "none"], ["nvlink", "nvlink"]):
        assert settled(monkeypatch, none, links, environ) == (["", ""], [environ] * 2)
    off = {**environ, "AUTOTUNE_NCCL_PROBE": "0"}
    assert settled(monkeypatch, none, ["sockets"] * 2, off) == (["", ""], [off] * 2)


def test_a_memory_that_holds_anything_else_is_none(
    helper: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "hvd-autotune" / "nccl.json"
    path.parent.mkdir()
    for content in ("", "[]", '{"x": 1}', "{"):
        path.write_text(content)
        lines, _ = settled(
            monkeypatch, helper, ["shared memory"] * 2, {"XDG_CACHE_HOME": str(tmp_path)}
        )
        assert "(+100%;" in lines[0]
    json.loads(path.read_text())
