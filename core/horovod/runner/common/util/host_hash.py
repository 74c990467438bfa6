"""What tells hosts apart."""

from __future__ import annotations

import hashlib
import socket


def host_hash(salt: str | None = None) -> str:
    """**Local.** Return the host's name and a digest of it and of ``salt``: equal on one host."""
    name = socket.gethostname()
    text = name if salt is None else f"{name}-{salt}"
    return f"{name.partition('.')[0]}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"
