"""Gets events out of a timeline file: whole ones, wherever the file was cut, in bounded memory.

The file is read in blocks. A block is cut where one event ends and the next begins, and decoded at
once; where that does not work (braces inside a name, damage) its events are decoded one by one, and
what is no event is skipped and counted.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from json import JSONDecodeError
from typing import Any, BinaryIO

from autotune.errors import TimelineError

BLOCK_BYTES = 1 << 20
LONGEST_EVENT = 1 << 22
"""Text without the end of an event; more of it is damage."""

Event = dict[str, Any]

_BETWEEN = re.compile(r"\}\s*,\s*\{")
_PHASE = re.compile(r'"ph"\s*:\s*"[A-Za-z]"')
"""What every event has, and little else."""
_DECODER = json.JSONDecoder()


@dataclass
class EventReader:
    """The events of one file, as an iterator of batches.

    Attributes:
        path: The file.
        skipped_bytes: What could not be read as events, so far.
        headless: The array's begin is missing: the file was cut there.
        whole: The array's end was seen: the file was not cut there.
    """

    path: str
    skipped_bytes: int = 0
    headless: bool = False
    whole: bool = False
    _rest: str = field(default="", repr=False)

    def batches(self) -> Iterator[list[Event]]:
        """Yield the events in file order, some thousands at a time.

        Raises:
            TimelineError: The file cannot be read, or is no timeline.
        """
        try:
            if not _ends(self.path):
                raise TimelineError(f"{self.path}: is not a regular file: expected a timeline")
            with open(self.path, "rb") as file:
                yield from self._read(file)
        except OSError as error:
            raise TimelineError(f"{self.path}: {os.strerror(error.errno or 0).lower()}") from None

    def _read(self, file: BinaryIO) -> Iterator[list[Event]]:
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        block = file.read(BLOCK_BYTES)
        self._rest = self._after_begin(decode(block))
        while block:
            if len(self._rest) >= BLOCK_BYTES // 2:
                yield self._take(last=False)
            block = file.read(BLOCK_BYTES)
            self._rest += decode(block)
        yield self._take(last=True)

    def _after_begin(self, text: str) -> str:
        """Return what follows the bracket that opens the event array, all where it is missing."""
        stripped = text.lstrip("\ufeff \t\r\n")
        if stripped.startswith("["):
            return stripped[1:]
        at = text.find('"traceEvents"')
        at = text.find("[", at) if stripped.startswith("{") and at >= 0 else -1
        self.headless = at < 0 and _PHASE.search(text) is not None
        if self.headless:
            return text
        if at < 0:
            what = "empty" if not stripped else "not a timeline (expected a JSON array of events)"
            raise TimelineError(f"{self.path}: {what}")
        return text[at + 1 :]

    def _take(self, last: bool) -> list[Event]:
        text = self._rest
        end = len(text) if last else _last_boundary(text)
        if end > 0:
            body, self._rest = text[:end], text[end:].lstrip(", \t\r\n") if not last else ""
            try:
                events = _only_events(json.loads(_array(body, last)))
                self.whole = last
                return events
            except (JSONDecodeError, RecursionError):
                self._rest = text
        return self._one_by_one(last)

    def _one_by_one(self, last: bool) -> list[Event]:
        """Decode event by event; keep an unfinished one for the next block."""
        text, at = self._rest, 0
        events: list[Event] = []
        while True:
            start = text.find("{", at)
            if start < 0:
                self._skip(text[at:], last)
                self._rest = ""
                return events
            self._skip(text[at:start], False)
            try:
                event, at = _DECODER.raw_decode(text, start)
                if "ph" in event:
                    events.append(event)
                else:  # arguments of an event whose begin is damaged
                    self.skipped_bytes += at - start
            except (JSONDecodeError, RecursionError):
                if len(text) - start < LONGEST_EVENT and not last:
                    self._rest = text[start:]
                    return events
                at = _next_start(text, start)
                self.skipped_bytes += at - start

    def _skip(self, text: str, at_end: bool) -> None:
        left = text.strip(" \t\r\n,")
        if at_end and left.startswith("]"):
            self.whole, left = True, left[1:]
        self.skipped_bytes += len(left)


def _ends(path: str) -> bool:
    """Return whether reading comes to an end: a file, or a pipe that a shell has connected.

    A pipe with a name waits for a writer that may never come.

    Raises:
        OSError: There is nothing.
    """
    mode = os.stat(path).st_mode
    is_connected = stat.S_ISFIFO(mode) and not os.path.exists(os.path.realpath(path))
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode) or is_connected  # reading a folder says so


def _array(body: str, last: bool) -> str:
    """Return ``body`` as an array of its own; the file's last part must close itself."""
    return "[" + body.strip(" \t\r\n,") + ("" if last else "]")


def _last_boundary(text: str) -> int:
    """Return where the last event that surely ended has ended, 0 if unknown."""
    low = len(text)
    while low > 0:
        low = max(0, low - 8192)
        found = list(_BETWEEN.finditer(text, low))
        if found:
            return found[-1].start() + 1
    return 0


def _next_start(text: str, start: int) -> int:
    """Return where an event could begin after the damaged one at ``start``."""
    at = text.find('{"', start + 1)
    return len(text) if at < 0 else at


def _only_events(values: list[Any]) -> list[Event]:
    return [value for value in values if type(value) is dict]
