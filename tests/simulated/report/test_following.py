"""``autotune watch`` and ``autotune report --follow`` beside a log that grows."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import made_logs
from autotune.cli.main import main
from autotune.errors import LogError
from autotune.report import watch
from autotune.report.changed import stamp, wait_for
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
    watch.watch(growing.path, follower, seen.append, first=first, sleep=growing.sleep)
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
    assert "not certified yet" in lines["gain"]
    assert "a job writes to it" in lines["log"] and "at most" in lines["left"]


def test_a_follower_reads_only_what_is_new(growing: Growing) -> None:
    follower = watch.Follower(growing.path)
    growing.sleep(0)
    follower.look()
    assert follower._known is not None
    readings, count = follower._known[1], len(follower._known[1])
    growing.sleep(0)
    follower.look()
    assert follower._known[1] is readings and len(readings) > count


def test_a_job_that_ends_early_ends_the_view(growing: Growing, at_once: None) -> None:
    turns = 0

    def sleep(seconds: float) -> None:
        nonlocal turns
        turns += 1
        growing.sleep(seconds) if turns < 3 else growing.close()
        assert turns < 6

    seen: list[watch.Now] = []
    follower = watch.Follower(growing.path)
    watch.watch(growing.path, follower, seen.append, first=follower.look(), sleep=sleep)
    assert not seen[-1].in_use and not seen[-1].view.finished


def test_an_interrupt_ends_a_view(growing: Growing) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    follower, seen = watch.Follower(growing.path), []
    watch.watch(growing.path, follower, seen.append, first=follower.look(), sleep=interrupt)
    assert seen == []


def test_a_finished_log_is_not_waited_for(logs: dict[str, str]) -> None:
    def sleep(seconds: float) -> None:
        raise AssertionError("nothing will come any more")

    follower = watch.Follower(logs["gain"])
    watch.watch(logs["gain"], follower, lambda now: None, first=follower.look(), sleep=sleep)


def test_a_file_system_that_goes_and_comes_back_is_said_and_waited_for(
    tmp_path: Path, at_once: None, logs: dict[str, str]
) -> None:
    folder, away = tmp_path / "shared", tmp_path / "away"
    shutil.copytree(Path(logs["unfinished"]).parent, folder)
    path, seen, turns = str(folder / "log.csv"), [], 0

    def sleep(seconds: float) -> None:
        nonlocal turns
        turns += 1
        if turns == 2:
            folder.rename(away)
        if turns == 8:
            away.rename(folder)
        if turns == 10:
            raise KeyboardInterrupt

    follower = watch.Follower(path)
    watch.watch(path, follower, seen.append, first=follower.look(), sleep=sleep)
    troubles = [now.trouble for now in seen]
    assert [bool(trouble) for trouble in troubles] == [False, True, False]
    assert "no such file" in dict(watch.lines(seen[1]))["warning"]
    assert seen[1].trials == seen[0].trials == seen[2].trials != ()


def test_a_log_that_began_anew_is_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.csv"
    entries = made_logs.job("bowl", 3, most_steps=400)
    follower = watch.Follower(made_logs.write(path, entries))
    follower.look()
    for file in tmp_path.iterdir():
        file.unlink()
    monkeypatch.setattr(made_logs, "BEGIN_S", made_logs.BEGIN_S + 3600)
    made_logs.write(path, entries[: len(entries) // 2])
    now = follower.look()
    assert follower._known is not None
    fresh = watch.Follower(str(path))
    assert fresh.look().price == now.price
    assert fresh._known is not None and len(fresh._known[1]) == len(follower._known[1])


def test_a_log_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    path, said, turns = tmp_path / "log.csv", [], 0

    def sleep(seconds: float) -> None:
        nonlocal turns
        turns += 1
        if turns == 3:
            path.write_text("")

    wait_for(str(path), said.append, sleep=sleep)
    assert turns == 3 and len(said) == 1 and str(path) in said[0]
    wait_for(str(path), said.append, sleep=sleep)
    wait_for(str(tmp_path / "no folder" / "log.csv"), said.append, sleep=sleep)
    assert turns == 3 and len(said) == 1


def test_a_view_takes_a_thousandth_of_a_core() -> None:
    assert watch.pause_s(0.0001) == watch.LOOK_S
    assert watch.pause_s(0.005) == pytest.approx(10.0)
    assert watch.pause_s(0.5) == pytest.approx(1000.0)


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


def test_a_view_says_of_when_its_gains_are(capsys, logs: dict[str, str]) -> None:
    assert main(["watch", "--once", logs["unfinished"]]) == 0
    assert "gains as each trial ended" in " ".join(capsys.readouterr().out.split())
    assert main(["watch", "--once", logs["horovod"]]) == 0
    assert "gains" not in capsys.readouterr().out  # such a log has none


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


def test_a_page_is_tried_again_when_its_log_could_not_be_read(
    growing: Growing, at_once: None
) -> None:
    turns: list[float] = []
    tries: list[float | None] = []

    def idle(seconds: float) -> None:
        turns.append(seconds)
        if len(turns) == 5:
            raise KeyboardInterrupt

    def rewrite(follow_s: float | None) -> bool:
        tries.append(follow_s)
        if len(tries) < 3:
            raise LogError("locked")
        return False

    follow([growing.path], rewrite, every_s=7.0, sleep=idle)
    assert tries == [7.0, 7.0, 7.0, None]


def test_the_last_page_of_a_log_that_has_gone_says_what_was_read_at_last(
    capsys, at_once: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, logs: dict[str, str]
) -> None:
    folder, page = tmp_path / "shared", tmp_path / "page.html"
    shutil.copytree(Path(logs["unfinished"]).parent, folder)
    original: Callable[..., None] = follow

    def interrupted(paths, rewrite, *, every_s) -> None:
        def sleep(seconds: float) -> None:
            shutil.rmtree(folder)
            raise KeyboardInterrupt

        original(paths, rewrite, every_s=every_s, sleep=sleep)

    monkeypatch.setattr("autotune.report.write.follow", interrupted)
    assert main(["report", str(folder / "log.csv"), "-o", str(page), "--follow"]) == 0
    text = page.read_text()
    assert "data-follow" not in text and "Tuning has not finished" in text
    assert len(capsys.readouterr().err.splitlines()) <= 1


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
