"""Which packages there are; neither they nor the engine are imported for that."""

from __future__ import annotations

from importlib import util


def is_installed(package: str) -> bool:
    """**Local.** Return whether ``package`` can be imported; a mere folder of that name is none."""
    spec = util.find_spec(package)
    return spec is not None and spec.origin is not None
