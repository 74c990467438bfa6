"""Everything that ``autotune`` raises on purpose.

::

    AutotuneError
    ├── InvalidSettingError (a ValueError)  a setting outside its domain; names value, unit, range
    ├── LogError                            a trial log cannot be opened, read or written
    │   ├── LogBusyError                    another live job writes to it (host and process named)
    │   ├── RefusedEntryError               an entry contradicts the log; it stays wrong
    │   └── NoAnswerError                   the log holds no trial that could be the answer
    ├── TimelineError                       a file is no timeline, or holds no collective
    ├── OutputError                         the answer cannot be printed
    └── ProtocolError                       the other side of the pipe broke the contract
"""

from __future__ import annotations


class AutotuneError(Exception):
    """Base of all errors that a caller of ``autotune`` can act on."""


class InvalidSettingError(AutotuneError, ValueError):
    """A setting is outside its valid domain; the message names variable, value, unit and range."""


class LogError(AutotuneError):
    """A trial log cannot be opened, read or written; the message names the path."""


class LogBusyError(LogError):
    """Another live job holds the log; the message names its host and process."""


class RefusedEntryError(LogError):
    """An entry contradicts what the log holds: trying again is useless."""


class NoAnswerError(LogError):
    """The log was read, and holds no trial that could be the answer."""


class TimelineError(AutotuneError):
    """A file cannot be read as a timeline, or has nothing to analyse; the message names it."""


class OutputError(AutotuneError):
    """Standard output cannot be written."""


class ProtocolError(AutotuneError):
    """A line on the service's pipe is not a message of this protocol version."""
