"""The status line is rewritten on a terminal and is a line of the log elsewhere."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from autotune.service.status_line import StatusLine


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
