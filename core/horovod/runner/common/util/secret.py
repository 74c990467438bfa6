"""Keyed digests of messages."""

from __future__ import annotations

import hashlib
import hmac
import secrets

DIGEST_LENGTH = 32
"""In bytes."""


def make_secret_key() -> bytes:
    """**Local.** Return a new key of 32 random bytes."""
    return secrets.token_bytes(DIGEST_LENGTH)


def compute_digest(key: bytes, data: bytes) -> bytes:
    """**Local.** Return the digest of ``data`` under ``key`` (HMAC-SHA-256, RFC 2104)."""
    return hmac.digest(key, data, hashlib.sha256)


def check_digest(digest: bytes, key: bytes, data: bytes) -> bool:
    """**Local.** Return whether ``digest`` is that of ``data``, in a time that tells nothing."""
    return hmac.compare_digest(digest, compute_digest(key, data))
