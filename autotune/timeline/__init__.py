"""Reads timelines (Chrome-trace event arrays, ours and Horovod's) and says where the time went.

``events`` gets whole events out of any file, ``phases`` names what a moment is spent on, ``sweep``
walks through the events once and adds up, ``report`` holds the sums, ``findings`` says them in
sentences, ``render`` and ``plot`` show them.
"""

from __future__ import annotations

from autotune.timeline.analyse import analyse
from autotune.timeline.report import TimelineReport

__all__ = ["TimelineReport", "analyse"]
