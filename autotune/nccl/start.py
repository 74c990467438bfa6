"""What NCCL reads once, when a process makes its first communicator: which settings are tried.

Its variables for the threads and sockets of a connection, for channels and for buffers. They have
to be chosen together: over sockets more channels cost time without helper threads, and bring most
of the gain with them (``experiments/nccl``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from autotune.nccl.links import Link

VARIABLES = (
    "NCCL_SOCKET_NTHREADS",
    "NCCL_NSOCKS_PERTHREAD",
    "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_BUFFSIZE",
)
Settings = Mapping[str, str]
"""{variable of NCCL: text}; {}: NCCL's defaults."""

_BUFFER = "1048576"


def _of_sockets(threads: int, sockets: int, channels: int = 0) -> dict[str, str]:
    settings = {"NCCL_SOCKET_NTHREADS": str(threads), "NCCL_NSOCKS_PERTHREAD": str(sockets)}
    return settings | _channels(channels)


def _channels(count: int) -> dict[str, str]:
    if not count:
        return {}
    return {"NCCL_MIN_NCHANNELS": str(count), "NCCL_MAX_NCHANNELS": str(count)}


CANDIDATES: dict[Link, tuple[Settings, ...]] = {
    "none": (),
    "nvlink": (),
    "pci": (_channels(8), _channels(16), _channels(16) | {"NCCL_BUFFSIZE": _BUFFER}),
    "shared memory": (
        _channels(8),
        _channels(16),
        _channels(8) | {"NCCL_BUFFSIZE": _BUFFER},
        _channels(16) | {"NCCL_BUFFSIZE": _BUFFER},
        _channels(24) | {"NCCL_BUFFSIZE": _BUFFER},
    ),
    "sockets": (
        _of_sockets(2, 1, 8),
        _of_sockets(2, 2, 4),
        _of_sockets(2, 2, 8),
        _of_sockets(4, 1, 4),
        _of_sockets(4, 4),
    ),
    "network": (
        _of_sockets(2, 1, 8),
        _of_sockets(2, 2, 4),
        _of_sockets(4, 1, 4),
        _of_sockets(4, 4),
    ),
}
"""What is tried beside the defaults, by link: what was best in a sweep for some network, or near it
(``experiments/nccl``)."""


def candidates(link: Link, environ: Mapping[str, str]) -> list[dict[str, str]]:
    """Return what is to be tried: the defaults first. What the user has set stays what it is."""
    given = {name for name in VARIABLES if environ.get(name, "").strip()}
    found: list[dict[str, str]] = [{}]
    for one in CANDIDATES[link]:
        free = {name: text for name, text in one.items() if name not in given}
        if free and free not in found:
            found.append(free)
    return found


def settings_text(settings: Settings) -> str:
    """Return settings for a sentence."""
    return " ".join(f"{name}={text}" for name, text in settings.items()) or "NCCL's defaults"


START_UP = "nccl start-up"
"""Under this name a run's versions hold what was put in force: another one is another job."""


def versions_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Return {START_UP: settings} of what is in force; {}: NCCL's defaults."""
    given = {name: environ[name].strip() for name in VARIABLES if environ.get(name, "").strip()}
    return {START_UP: settings_text(given)} if given else {}


def settings_of(versions: Mapping[str, object]) -> dict[str, str]:
    """Return {variable: text} of what a run's versions say was in force: the inverse."""
    words = str(versions.get(START_UP, "")).split()
    pairs = dict(word.split("=", 1) for word in words if "=" in word)
    return {name: text for name, text in pairs.items() if name in VARIABLES}


def cache_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the file in which a user's earlier probes are."""
    folder = environ.get("XDG_CACHE_HOME", "").strip() or Path.home() / ".cache"
    return Path(folder) / "hvd-autotune" / "nccl.json"


def remembered(key: Sequence[str], path: Path) -> dict[str, str] | None:
    """Return the settings that an earlier probe found; None: there was none, or it is unreadable.

    Args:
        key: What the result depends on.
        path: The file.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))[" | ".join(key)]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    is_whole = isinstance(found, dict) and all(
        name in VARIABLES and isinstance(text, str) and text.isdecimal()
        for name, text in found.items()
    )
    return found if is_whole else None


def remember(key: Sequence[str], settings: Settings, path: Path) -> None:
    """Keep what a probe found; a file that cannot be written is no reason to fail."""
    try:
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            known = {}
        known = known if isinstance(known, dict) else {}
        known[" | ".join(key)] = dict(settings)
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f"{path.name}.{os.getpid()}")
        new.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
        os.replace(new, path)
    except OSError:
        pass
