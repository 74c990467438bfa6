"""Pytest plugin: ``horovod._engine`` is the module in $SANITIZED_ENGINE, not the installed one."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys

NAME = "horovod._engine"


def load(path: str) -> None:
    """Load the module at ``path`` as ``horovod._engine``, before anybody imports that."""
    loader = importlib.machinery.ExtensionFileLoader(NAME, path)
    spec = importlib.util.spec_from_file_location(NAME, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    loader.exec_module(module)


load(os.environ["SANITIZED_ENGINE"])
