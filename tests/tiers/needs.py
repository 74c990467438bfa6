"""What a tier needs from the machine: each function returns why it cannot run, or ""."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent


def nothing() -> str:
    return ""


def tests(folder: str, pattern: str = "test_*.py") -> Callable[[], str]:
    """Return a check that tests/``folder`` holds tests."""

    def check() -> str:
        return "" if any((TESTS / folder).rglob(pattern)) else f"tests/{folder} has no tests yet"

    return check


def cluster() -> str:
    if os.getuid() != 0:
        return "needs root (network namespaces)"
    if not shutil.which("ip"):
        return "needs iproute2 (`ip netns`)"
    return tests("cluster")()


def gpu() -> str:
    if not shutil.which("nvidia-smi"):
        return "needs an NVIDIA GPU (no nvidia-smi on PATH)"
    return tests("gpu")()
