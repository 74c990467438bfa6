"""Trial logs behind one contract: CSV (append-only), SQLite, and Horovod's own logs (read only)."""

from autotune.storage.contract import (
    Fresh,
    Remembered,
    Replay,
    Resume,
    RunInfo,
    Start,
    TrialStore,
)
from autotune.storage.logs import Logs, open_logs
from autotune.storage.memory import find_similar
from autotune.storage.reader import LogView, read_log

__all__ = [
    "Fresh",
    "LogView",
    "Logs",
    "Remembered",
    "Replay",
    "Resume",
    "RunInfo",
    "Start",
    "TrialStore",
    "find_similar",
    "open_logs",
    "read_log",
]
