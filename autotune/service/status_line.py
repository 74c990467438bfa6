"""Rank 0's lines about the tuning: a log, and one live line that rewrites itself on a terminal."""

from __future__ import annotations

import logging
import sys

_ERASE_LINE = "\r\x1b[2K"


class StatusLine:
    """Writes to ``logger``; progress goes to standard error directly where that is a terminal.

    There it begins with ``tag`` in brackets.
    """

    def __init__(self, logger: logging.Logger, *, tag: str) -> None:
        self._logger = logger
        self._tag = tag
        self._open = False

    def line(self, text: str, level: str = "info") -> None:
        """Log ``text`` at ``level`` ("debug", "info", "warning", "error")."""
        self.end()
        self._logger.log(getattr(logging, level.upper(), logging.INFO), "%s", text)

    def show(self, text: str) -> None:
        """Show how far the tuning is: in place on a terminal, else as a line of the log."""
        if not sys.stderr.isatty():
            self._logger.info("%s", text)
            return
        sys.stderr.write(f"{_ERASE_LINE}[{self._tag}] {text}")
        sys.stderr.flush()
        self._open = True

    def end(self) -> None:
        """Finish a live line, so that other output starts on its own."""
        if self._open:
            sys.stderr.write("\n")
            sys.stderr.flush()
            self._open = False
