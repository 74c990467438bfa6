"""What a tier needs from the machine: each function returns why it cannot run, or ""."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tiers import tensorflow_environment

TESTS = Path(__file__).resolve().parent.parent


def nothing() -> str:
    return ""


def tests(folder: str, pattern: str = "test_*.py") -> Callable[[], str]:
    """Return a check that tests/``folder`` holds tests."""

    def check() -> str:
        return "" if any((TESTS / folder).rglob(pattern)) else f"tests/{folder} has no tests yet"

    return check


def cluster() -> str:
    return _hosts() or tests("cluster")()


def chaos() -> str:
    return _hosts() or tests("chaos")()


def _hosts() -> str:
    if os.getuid() != 0:
        return "needs root (network namespaces)"
    if not shutil.which("ip"):
        return "needs iproute2 (`ip netns`)"
    return ""


def browser() -> str:
    missing = [name for name in ("chromium", "chromedriver") if not shutil.which(name)]
    if missing:
        return f"needs {' and '.join(missing)} (Debian: chromium, chromium-driver)"
    if importlib.util.find_spec("selenium") is None:
        return "needs selenium (pip install selenium)"
    return tests("browser")()


def tensorflow() -> str:
    return tests("tensorflow")() or tensorflow_environment.make()


def gpu() -> str:
    if devices() < 2:
        return f"needs 2 GPUs that torch can use, found {devices()}"
    return tests("gpu")()


@functools.cache
def devices() -> int:
    """Return how many GPUs torch can use; HVD_TEST_DEVICE=cpu is good for any number of ranks."""
    if os.environ.get("HVD_TEST_DEVICE") == "cpu":
        return 4
    if not shutil.which("nvidia-smi"):
        return 0
    code = "import torch; print(torch.cuda.device_count())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return int(found.stdout) if found.returncode == 0 else 0
