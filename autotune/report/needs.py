"""What is only needed by reports: a missing extra is one sentence."""

from __future__ import annotations

import importlib
from typing import Any

from autotune.errors import OutputError


def needed(module: str, extra: str) -> Any:
    """Import a module.

    Raises:
        OutputError: It is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise OutputError(
            f"{module} is not installed: pip install 'hvd-autotune[{extra}]'"
        ) from None
