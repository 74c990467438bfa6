"""A command of a shell that leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

CHECK_SECONDS = 0.1
GRACEFUL_TERMINATION_TIME_S = 5
"""Between SIGTERM and SIGKILL."""


def execute(
    command: str | Sequence[str],
    env: Mapping[str, str] | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    index: int | None = None,
    events: Sequence[threading.Event] | None = None,
    **ignored: Any,
) -> int:
    """Run ``command`` and return its exit code, -n for signal n. **Local.**

    Args:
        command: For the shell; or words, which need none.
        env: Its environment; None: ours.
        stdout: Where its output goes; None: to ours.
        stderr: Where its errors go; None: to ours.
        index: Is written before each line, where it is given.
        events: Each ends the command and its children when it is set.
        **ignored: Horovod's other options, about prefixes of lines.
    """
    process = subprocess.Popen(
        command,
        shell=isinstance(command, str),
        env=None if env is None else dict(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    prefix = "" if index is None else f"[{index}]"
    ways = [(process.stdout, stdout or sys.stdout), (process.stderr, stderr or sys.stderr)]
    readers = [
        threading.Thread(target=_copy, args=(source, to, prefix), daemon=True)
        for source, to in ways
    ]
    for reader in readers:
        reader.start()
    try:
        while True:
            try:
                code = process.wait(CHECK_SECONDS)
                break
            except subprocess.TimeoutExpired:
                if any(event.is_set() for event in events or ()):
                    code = _end(process)
                    break
    finally:
        _signal(process, signal.SIGKILL)
    for reader in readers:
        reader.join(GRACEFUL_TERMINATION_TIME_S)
    return code


def _copy(source: Any, to: TextIO, prefix: str) -> None:
    with source:
        for line in source:
            to.write(f"{prefix}{line}")
    to.flush()


def _end(process: subprocess.Popen[str]) -> int:
    _signal(process, signal.SIGTERM)
    try:
        return process.wait(GRACEFUL_TERMINATION_TIME_S)
    except subprocess.TimeoutExpired:
        _signal(process, signal.SIGKILL)
        return process.wait()


def _signal(process: subprocess.Popen[str], number: int) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        pass
