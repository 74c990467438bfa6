"""``autotune run``: the environment in which a command, whatever launches its ranks, is tuned.

Nothing of the job is known here: each Python that the command starts finds the adapter by
PYTHONPATH, and does nothing unless it comes to make a DistributedDataParallel module. A job of the
runtime ``horovod`` reads the same variables.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path

import autotune

PREFIX = "HOROVOD_AUTOTUNE"
BOOTSTRAP = Path(autotune.__file__).parent / "ddp" / "bootstrap"
"""Holds the ``sitecustomize`` that is found first."""
_OPTIONS = {
    "log": ("LOG", "FILE", "CSV log of all trials; without it none is kept"),
    "db": ("DB", "FILE_OR_FOLDER", "SQLite log (default: beside the CSV)"),
    "budget": ("BUDGET", "SHARE", "largest share of the time that tuning may lose (default: 0.05)"),
    "seed": ("SEED", "N", "makes proposals reproducible"),
    "explore": (
        "EXPLORE",
        "WORDS",
        "also try fp16 or bf16 gradients, static_graph (default: none)",
    ),
    "max-trials": ("BAYES_OPT_MAX_SAMPLES", "N", "most settings that are tried (default: 20)"),
}
"""{option: (end of its variable, what it takes, what it is)}."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give ``parser`` an option for each of the tuner's variables that people set."""
    for name, (variable, what, text) in _OPTIONS.items():
        parser.add_argument(f"--{name}", metavar=what, help=f"{text}; {PREFIX}_{variable}")
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)  # a command without its --


def environment_of(options: argparse.Namespace, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a command that is to be tuned; options win over variables."""
    child = {**environ, PREFIX: "1"}
    for name, (variable, _, _) in _OPTIONS.items():
        given = getattr(options, name.replace("-", "_"))
        if given is not None:
            is_path = name in ("log", "db")
            child[f"{PREFIX}_{variable}"] = _absolute(given) if is_path else given
    return with_adapter(child)


def with_adapter(environ: Mapping[str, str]) -> dict[str, str]:
    """Return ``environ`` with the adapter's folder first in PYTHONPATH."""
    others = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    paths = [str(BOOTSTRAP), *(path for path in others if path != str(BOOTSTRAP))]
    return {**environ, "PYTHONPATH": os.pathsep.join(paths)}


def _absolute(path: str) -> str:
    """Return a path that means the same in another folder; a folder keeps the slash at its end."""
    full = os.path.abspath(os.path.expanduser(path))
    return full + "/" if path.endswith("/") else full
