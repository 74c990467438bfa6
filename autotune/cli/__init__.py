"""``autotune best | show | report | replay | runs | timeline``."""

from autotune.cli.main import main

__all__ = ["main"]
