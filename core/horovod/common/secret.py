"""The key by which ranks know each other: what rank 0 draws, and what the user's secret adds.

What joins the ranks, MPI or their meeting point, carries rank 0's random bytes to all of them.
Between hosts it does so unencrypted; who can listen there knows the key, unless a secret that was
on all hosts before is a part of it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horovod.common.world import World

ENV = "HOROVOD_SECRET_KEY"
LEAST_CHARACTERS = 16
_KEY_BYTES = 32
"""Of the engine's keys, and of SHA-256."""


@dataclass(frozen=True, repr=False, eq=False)
class Secret:
    """The user's secret. It is never shown, and never sent: ranks compare ``fingerprint``."""

    text: str

    @property
    def fingerprint(self) -> str:
        """Equal for equal secrets; says nothing about one that cannot be guessed."""
        return "a key " + hashlib.sha256(b"fingerprint:" + self.text.encode()).hexdigest()[:8]


def parse(text: str) -> Secret:
    """Return the secret ``text``.

    Raises:
        ValueError: It can be guessed. The message does not show it.
    """
    if len(text) < LEAST_CHARACTERS:
        raise ValueError(
            f"{ENV}: expected at least {LEAST_CHARACTERS} random characters, got {len(text)}; for "
            "example the output of 'openssl rand -hex 32'"
        )
    return Secret(text)


def job_key(world: World, secret: Secret | None) -> bytes:
    """**Collective.** Return the key of this job, 32 bytes; equal on all ranks of ``world``."""
    drawn: bytes = world.bcast(os.urandom(_KEY_BYTES) if world.rank == 0 else b"")
    return drawn if secret is None else hmac.digest(secret.text.encode(), drawn, "sha256")
