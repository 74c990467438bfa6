"""What is asked of mpi4py, of which every kind of MPI library is one."""

from __future__ import annotations

import json
import subprocess
import sys
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
