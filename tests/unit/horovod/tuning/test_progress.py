"""Progress rewrites its line on a terminal and is a line of the log elsewhere."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from horovod.tuning.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def progress() -> Progress:
    logger = logging.getLogger("test-progress")
    logger.setLevel(logging.INFO)
    return Progress(logger)


def test_without_a_terminal_it_is_a_line(
    progress: Progress, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    progress.show("trial 1")
    progress.line("careful", "warning")
    progress.end()
    assert [(r.levelname, r.message) for r in caplog.records] == [
        ("INFO", "trial 1"),
        ("WARNING", "careful"),
    ]


def test_on_a_terminal_it_stays_in_place(
    progress: Progress, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    progress.show("trial 1")
    progress.show("trial 2")
    progress.line("done")
    text = terminal.getvalue()
    assert text.count("\n") == 1
    assert text.endswith("trial 2\n")
    assert text.count("\r") == 2
    assert [r.message for r in caplog.records] == ["done"]
