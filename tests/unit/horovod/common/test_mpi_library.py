"""What is asked of mpi4py, of which every kind of MPI library is one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from horovod.common import mpi_library

HERE = """
import json, sys
from horovod.common import mpi_library
found = mpi_library.find()
print(json.dumps([found.path, found.error, "mpi4py.MPI" in sys.modules]))
"""


def find_here(libmpi: str) -> tuple[str, str, bool]:
    """Return path, error and whether this loaded anything, in a process of its own."""
    child = subprocess.run(
        [sys.executable, "-c", HERE],
        env={"MPI4PY_LIBMPI": libmpi, "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    path, error, loaded = json.loads(child.stdout)
    return path, error, loaded


def test_a_machine_without_mpi_is_no_error_of_ours() -> None:
    path, error, loaded = find_here("/nowhere/libmpi.so.40")
    assert path == ""
    assert "cannot load MPI library" in error
    assert not loaded


def test_a_child_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi_library, "_CHILD", "raise SystemExit('this is why')")
    assert mpi_library.find.__wrapped__().error == "this is why"
    monkeypatch.setattr(mpi_library.sys, "executable", "/nowhere/python")
    assert "/nowhere/python" in mpi_library.find.__wrapped__().error


def test_a_library_without_a_function_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    mpi = SimpleNamespace(__file__=mpi_library._engine.__file__)
    with pytest.raises(RuntimeError, match="has no function MPI_Issend"):
        mpi_library._address(mpi, "MPI_Issend")


def sends_by_tcp(
    *devices: Path, vendor: str = "Open MPI", environ: Mapping[str, str] | None = None
) -> bool:
    mpi = SimpleNamespace(get_vendor=lambda: (vendor, (5, 0, 8)))
    return mpi_library.sends_by_tcp(mpi, environ or {}, devices)


def test_open_mpi_sends_by_tcp_where_no_card_needs_none(tmp_path: Path) -> None:
    assert sends_by_tcp(tmp_path, tmp_path / "none")
    (tmp_path / "mlx5_0").mkdir()
    assert not sends_by_tcp(tmp_path / "none", tmp_path)


@pytest.mark.parametrize("vendor", ["MPICH", "Intel MPI", "unknown"])
def test_of_another_mpi_nothing_is_known(vendor: str) -> None:
    assert not sends_by_tcp(vendor=vendor)


@pytest.mark.parametrize(
    ("name", "value", "is_left_alone"),
    [
        ("OMPI_MCA_pml", "ucx", True),
        ("OMPI_MCA_pml", "ob1", False),
        ("OMPI_MCA_btl_tcp_flags", "1", True),
        ("OMPI_MCA_btl_tcp_eager_limit", "4096", True),
        ("OMPI_MCA_btl_tcp_if_include", "eth0", False),
    ],
)
def test_who_has_set_how_open_mpi_sends_is_left_alone(
    name: str, value: str, is_left_alone: bool
) -> None:
    assert sends_by_tcp(environ={name: value}) == (not is_left_alone)
