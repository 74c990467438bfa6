"""Has NCCL load the tuner library of this package, where nothing stands in the way."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path

VARIABLE = "NCCL_TUNER_PLUGIN"
FILE = "libautotune_nccl_tuner.so"
LONGEST_PATH = 254
"""NCCL cuts longer ones off (its plugin_open.cc)."""


def library_path() -> str:
    """Return where the library is; "": it is not installed, as in a package without C++."""
    own = Path(__file__).resolve().parent / FILE
    installed = (Path(folder) / "autotune" / "nccl" / FILE for folder in sys.path if folder)
    found = next((path for path in (own, *installed) if path.is_file()), None)
    return "" if found is None else str(found)


def offer(environ: MutableMapping[str, str]) -> str:
    """Have NCCL load the library with the first communicator of this process. **Local.**

    Must come before that: NCCL reads the variable once.

    Args:
        environ: The environment, which is changed.

    Returns:
        Why nothing was done, "" where it was.
    """
    path = library_path()
    given = environ.get(VARIABLE, "").strip()
    if not path:
        return f"{FILE} is not installed: this package was installed without C++"
    if given and given != path:
        return f"{VARIABLE}={given} is set, which is left alone"
    if len(path) > LONGEST_PATH:
        return f"its path is longer than NCCL reads ({len(path)} characters): {path}"
    environ[VARIABLE] = path
    return ""


OF_NCCL = {"NCCL_ALGO": "nccl_algorithm", "NCCL_PROTO": "nccl_protocol"}
"""{variable of NCCL: the parameter that it decides}."""


def decided(environ: Mapping[str, str]) -> dict[str, str]:
    """Return {parameter: reason} of what NCCL's own variables decide."""
    return {
        name: f"{variable}={environ[variable]} is set"
        for variable, name in OF_NCCL.items()
        if environ.get(variable, "").strip()
    }


def offered(environ: Mapping[str, str] = os.environ) -> str:
    """Return the path of the library if NCCL is to load it, else ""."""
    path = library_path()
    return path if path and environ.get(VARIABLE, "").strip() == path else ""
