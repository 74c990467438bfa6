"""``autotune watch`` and ``autotune report --follow`` beside a log that grows."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import made_logs
from autotune.cli.main import main
from autotune.report import watch
from autotune.report.changed import stamp
from autotune.report.follow import follow
from autotune.trial import Trial


class Growing:
    """A log that a job writes to; ``sleep`` lets the job go on."""

    def __init__(self, path: Path, *, each: int = 12) -> None:
        self.entries = list(made_logs.job("bowl"))
        self.path = str(path)
        self._each = each
        self._logs = made_logs.start(path)
        self._now_s = made_logs.BEGIN_S
        self._is_open = True

    def sleep(self, seconds: float) -> None:
        assert self._is_open, "nobody writes any more, and still somebody waits"
        for _ in range(min(self._each, len(self.entries))):
            entry = self.entries.pop(0)
            self._now_s += getattr(entry, "duration_us", 0.0) / 1e6
            with made_logs.clock(self._now_s):
                made_logs.tell(self._logs, entry)
        if not self.entries:
            self.close()

    def close(self) -> None:
        if self._is_open:
            self._logs.close()
        self._is_open = False


@pytest.fixture
def growing(tmp_path: Path):
    log = Growing(tmp_path / "log.csv")
    yield log
    log.close()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pauses for the sake of the job: it waits for us here."""
    monkeypatch.setattr(watch, "pause_s", lambda cpu_s: 0.0)
    monkeypatch.setattr(os, "nice", lambda increment: 0)


def test_a_view_goes_through_all_phases_and_ends(growing: Growing, at_once: None) -> None:
    follower, seen = watch.Follower(growing.path), []
    growing.sleep(0)
    first = follower.look()
    assert first.in_use and "explores" in first.phase
    watch.watch(growing.path, follower, seen.append, sleep=growing.sleep)
    phases = [now.phase.split(":")[0] for now in seen]
    assert "compares with the default" in phases and phases[-1] == "finished"
    assert phases == sorted(phases, key=["explores", phases[-2], "finished"].index)
    assert seen[-1].verdict.compared
    lefts = [now.left_s for now in seen if now.left_s is not None]
    assert lefts and all(left >= 0 for left in lefts)


def test_a_view_says_that_nothing_is_compared_yet(growing: Growing) -> None:
    growing._each = 40
    growing.sleep(0)
    lines = dict(watch.lines(watch.Follower(growing.path).look()))
    assert "not compared yet" in lines["gain"]
    assert "a job writes to it" in lines["log"] and "at most" in lines["left"]


def test_a_follower_reads_only_what_is_new(growing: Growing) -> None:
    follower = watch.Follower(growing.path)
    growing.sleep(0)
    follower.look()
    assert follower._known is not None
    readings, count = follower._known[2], len(follower._known[2])
    growing.sleep(0)
    follower.look()
    assert follower._known[2] is readings and len(readings) > count


def test_a_job_that_ends_early_ends_the_view(growing: Growing, at_once: None) -> None:
    turns = 0

    def sleep(seconds: float) -> None:
        nonlocal turns
        turns += 1
        growing.sleep(seconds) if turns < 3 else growing.close()
        assert turns < 6

    seen: list[watch.Now] = []
    watch.watch(growing.path, watch.Follower(growing.path), seen.append, sleep=sleep)
    assert not seen[-1].in_use and not seen[-1].view.finished


def test_an_interrupt_ends_a_view(growing: Growing) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    watch.watch(growing.path, watch.Follower(growing.path), lambda now: None, sleep=interrupt)


def test_a_view_takes_a_thousandth_of_a_core() -> None:
    assert watch.pause_s(0.0001) == watch.LOOK_S
    assert watch.pause_s(0.005) == pytest.approx(10.0)
    assert watch.pause_s(1.0) == watch.LONGEST_S


def test_the_files_say_when_a_log_has_changed(growing: Growing) -> None:
    before = stamp(growing.path)
    assert stamp(growing.path) == before
    growing.sleep(0)
    assert stamp(growing.path) != before


@pytest.mark.parametrize("name", ["gain", "no gain", "nothing", "unfinished", "empty", "horovod"])
def test_any_log_can_be_watched_once(capsys, logs: dict[str, str], name: str) -> None:
    assert main(["watch", logs[name], "--once"]) == 0
    out, err = capsys.readouterr()
    assert "gain" in out and err == ""


def test_watching_nothing_is_one_sentence(capsys, tmp_path: Path) -> None:
    assert main(["watch", str(tmp_path / "none.csv")]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_page_follows_until_the_run_is_finished(growing: Growing, at_once: None) -> None:
    written: list[float | None] = []

    def rewrite(follow_s: float | None) -> bool:
        written.append(follow_s)
        return not growing.entries

    follow([growing.path], rewrite, every_s=3.0, sleep=growing.sleep)
    assert len(written) > 3
    assert written[-1] is None and set(written[:-1]) == {3.0}


def test_a_page_is_not_rewritten_while_nothing_changes(
    growing: Growing, at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[float] = []
    written: list[float | None] = []

    def idle(seconds: float) -> None:
        turns.append(seconds)
        if len(turns) == 5:
            raise KeyboardInterrupt

    def rewrite(follow_s: float | None) -> bool:
        written.append(follow_s)
        return False

    follow([growing.path], rewrite, every_s=7.0, sleep=idle)
    assert written == [7.0, None]


def test_the_command_follows_a_job_to_its_end(
    capsys, growing: Growing, at_once: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    growing._each = 60
    growing.sleep(0)
    original: Callable[..., None] = follow

    def quickly(paths, rewrite, *, every_s) -> None:
        original(paths, rewrite, every_s=every_s, sleep=growing.sleep)

    monkeypatch.setattr("autotune.report.write.follow", quickly)
    assert main(["report", growing.path, "-o", str(page), "--follow", "--every", "2"]) == 0
    text = page.read_text()
    assert "data-follow" not in text and "State: finished" in text
    assert len([e for e in made_logs.job("bowl") if isinstance(e, Trial)]) > 5
    assert capsys.readouterr().out == f"{page}\n"
