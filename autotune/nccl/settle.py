"""Puts NCCL's start-up settings in force in a job that tunes: from memory, or by a probe."""

from __future__ import annotations

import ctypes
import importlib.util
import json
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from autotune.nccl.links import Link, gpu_name
from autotune.nccl.probe import LIMIT_S, WORTH, Exchange, probe
from autotune.nccl.start import (
    VARIABLES,
    cache_path,
    candidates,
    remember,
    remembered,
    settings_text,
)

PROBE = "AUTOTUNE_NCCL_PROBE"
"""0: never probe, and use nothing that was remembered."""


def settle(
    link: Link,
    exchange: Exchange,
    *,
    rank: int,
    size: int,
    gpu: int,
    hosts: int,
    nccl: str,
    environ: MutableMapping[str, str],
    replayed: Mapping[str, str] | None = None,
) -> str:
    """Find the settings and put them in force. **Collective**, before NCCL is used.

    Args:
        link: Over what this rank's GPU talks; "none": nothing is to be found here.
        exchange: Among all ranks.
        rank: Of this process.
        size: Ranks of the job.
        gpu: This rank's, as CUDA numbers them here.
        hosts: Of the job.
        nccl: Path of the library.
        environ: Of this process, which is changed.
        replayed: What rank 0 wants all ranks to take instead, {variable: text}; None: nothing. What
            the user has set stays.

    Returns:
        A line for rank 0 to say; "": there is nothing to say.
    """
    tried = [] if _is_off(environ) or size == 1 else candidates(link, environ)
    if len(tried) < 2:
        tried = []
    version = _nccl_version(nccl) if tried else ""
    own = [name for name in VARIABLES if environ.get(name, "").strip()]
    key = (link, f"NCCL {version}", gpu_name(), f"{size} ranks", f"{hosts} hosts", *own)
    path = cache_path(environ)
    known = remembered(key, path) if tried and rank == 0 else None
    told = (json.dumps([link, tried]) if tried else "", known, replayed if rank == 0 else None)
    heard: list[Any] = list(exchange(told))
    if heard[0][2] is not None:
        return _replay(heard[0][2], environ)
    wishes = {wish for wish, _, _ in heard}
    if wishes == {""}:
        return ""
    if len(wishes) > 1:
        return "NCCL's start-up settings stay: the ranks have different links or variables"
    known = heard[0][1]
    if known is not None:
        environ.update(known)
        return (
            f"NCCL's start-up settings, as an earlier job found them: {settings_text(known)}; what "
            "the tuner calls the default is NCCL under these"
        )
    found = probe(tried, exchange, rank=rank, size=size, gpu=gpu, nccl=nccl, environ=environ)
    if found.reason:
        return f"NCCL's start-up settings stay: they could not be compared: {found.reason}"
    if rank == 0:
        remember(key, found.settings, path)
    environ.update(found.settings)
    took = f"{len(tried)} compared in {found.seconds:.1f} of at most {LIMIT_S:.0f} s"
    default, better = (sum(found.sizes) / us / 1000 for us in (found.default_us, found.found_us))
    low, high = min(found.sizes) >> 20, max(found.sizes) >> 20
    sizes = f"{low} to {high}" if low < high else f"{low}"
    if not found.settings:
        return (
            f"NCCL's start-up settings stay: none is {WORTH:.0%} faster than its defaults, "
            f"{default:.3g} GB/s over {link} ({took})"
        )
    return (
        f"NCCL's start-up settings: {settings_text(found.settings)}: operations of {sizes} MiB at "
        f"{better:.3g} GB/s instead of {default:.3g} over {link} ({found.gain:+.0%}; {took}; kept "
        f"in {path}); what the tuner calls the default is NCCL under these"
    )


def _replay(settings: Mapping[str, str], environ: MutableMapping[str, str]) -> str:
    free = {name: text for name, text in settings.items() if not environ.get(name, "").strip()}
    environ.update(free)
    return f"NCCL's start-up settings, as replayed: {settings_text(free)}" if free else ""


def nccl_path() -> str:
    """**Local.** Return where the NCCL is that comes with PyTorch; "": the loader finds one."""
    spec = importlib.util.find_spec("nvidia")
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    found = [path for place in places for path in Path(place).glob("nccl/lib/libnccl.so.2")]
    return str(found[0]) if found else ""


def _is_off(environ: MutableMapping[str, str]) -> bool:
    return environ.get(PROBE, "").strip() == "0"


def _nccl_version(path: str) -> str:
    version = ctypes.c_int()
    try:
        ctypes.CDLL(path or "libnccl.so.2").ncclGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return "unknown"
    return str(version.value)
