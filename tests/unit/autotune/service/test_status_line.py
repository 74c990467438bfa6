"""The status line is rewritten on a terminal and is a line of the log elsewhere.

Whatever a script does with ``sys.stderr``, lines end no training.
"""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable
from typing import TextIO

import pytest

from autotune.service.status_line import StandardError, StatusLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def status_line() -> StatusLine:
    logger = logging.getLogger("test-status-line")
    logger.setLevel(logging.INFO)
    return StatusLine(logger, tag="test")


def test_without_a_terminal_it_is_a_line(
    status_line: StatusLine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    status_line.show("trial 1")
    status_line.line("careful", "warning")
    status_line.end()
    assert [(r.levelname, r.message) for r in caplog.records] == [
        ("INFO", "trial 1"),
        ("WARNING", "careful"),
    ]


def test_on_a_terminal_it_stays_in_place(
    status_line: StatusLine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    status_line.show("trial 1")
    status_line.show("trial 2")
    status_line.line("done")
    text = terminal.getvalue()
    assert text.count("\n") == 1
    assert text.endswith("trial 2\n")
    assert text.count("\r") == 2 and "[test] trial 1" in text
    assert [r.message for r in caplog.records] == ["done"]


def closed() -> TextIO:
    stream = Terminal()
    stream.close()
    return stream


GONE = pytest.mark.parametrize("gone", [closed, lambda: None], ids=["closed", "none"])


@GONE
def test_a_terminal_that_is_gone_leaves_the_log(
    status_line: StatusLine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    gone: Callable[[], TextIO | None],
) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    status_line.show("trial 1")
    monkeypatch.setattr(sys, "stderr", gone())
    status_line.show("trial 2")
    status_line.line("done")
    assert [r.message for r in caplog.records] == ["trial 2", "done"]


@GONE
def test_lines_survive_a_standard_error_that_a_script_has_closed(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    gone: Callable[[], TextIO | None],
) -> None:
    monkeypatch.setattr(sys, "stderr", sys.__stderr__)
    handler = StandardError()
    monkeypatch.setattr(sys, "stderr", gone())
    handler.handle(logging.makeLogRecord({"msg": "still here"}))
    assert capfd.readouterr().err == "still here\n"


@GONE
def test_a_line_that_cannot_be_written_is_dropped(
    monkeypatch: pytest.MonkeyPatch, gone: Callable[[], TextIO | None]
) -> None:
    monkeypatch.setattr(sys, "stderr", gone())
    StandardError().handle(logging.makeLogRecord({"msg": "nobody reads this"}))
