"""The build backend: scikit-build-core, plus the choice of MPI (see ``mpi_choice``).

Every hook is scikit-build-core's own. Those that build get the MPI as CMake variables, unless the
caller passes other ones (``pip install . -C cmake.define.MPI_C_COMPILER=...``).
"""

from __future__ import annotations

import os
import sys
from typing import Any

from scikit_build_core import build as _backend

from mpi_choice import MpiChoice, choose_mpi, cmake_defines

Config = dict[str, Any] | None

build_sdist = _backend.build_sdist
get_requires_for_build_sdist = _backend.get_requires_for_build_sdist
prepare_metadata_for_build_wheel = _backend.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = _backend.prepare_metadata_for_build_editable


def get_requires_for_build_wheel(config_settings: Config = None) -> list[str]:
    """Return scikit-build-core's requirements and, where the caller has no MPI, the wheel."""
    return [*_backend.get_requires_for_build_wheel(config_settings), *_fallback()]


def get_requires_for_build_editable(config_settings: Config = None) -> list[str]:
    """Return scikit-build-core's requirements and, where the caller has no MPI, the wheel."""
    return [*_backend.get_requires_for_build_editable(config_settings), *_fallback()]


def build_wheel(
    wheel_directory: str, config_settings: Config = None, metadata_directory: str | None = None
) -> str:
    """Build the wheel with the chosen MPI."""
    return _backend.build_wheel(wheel_directory, _configured(config_settings), metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Config = None, metadata_directory: str | None = None
) -> str:
    """Build the editable wheel with the chosen MPI."""
    return _backend.build_editable(
        wheel_directory, _configured(config_settings), metadata_directory
    )


def _fallback() -> list[str]:
    choice = choose_mpi(os.environ)
    return choice.requirements if choice.compiler is None else []


def _configured(config_settings: Config) -> dict[str, Any]:
    settings = dict(config_settings or {})
    choice = choose_mpi(os.environ)
    defines = cmake_defines(choice)
    _say(choice, defines["MPI_C_COMPILER"])
    for name, value in defines.items():
        settings.setdefault(f"cmake.define.{name}", value)
    return settings


def _say(choice: MpiChoice, compiler: str) -> None:
    needs = f"; the package will require {choice.wheel}" if choice.wheel else ""
    print(f"hvd-autotune: building with {compiler} ({choice.reason}{needs})", file=sys.stderr)
