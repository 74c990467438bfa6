"""What the check of the binary wheel finds; building one is for tests/sites."""

from __future__ import annotations

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "release/wheel.py"
SPEC = importlib.util.spec_from_file_location("release_wheel", SCRIPT)
assert SPEC and SPEC.loader
release_wheel = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(release_wheel)

NM = """
                 U PyObject_Call
                 U _Py_Dealloc
                 U memcpy@GLIBC_2.14
                 U arc4random
                 w __gmon_start__
                 w __cxa_finalize@GLIBC_2.2.5
"""


def test_a_function_that_no_library_promises_is_found() -> None:
    assert release_wheel.without_version(NM) == ["arc4random"]


def test_libraries_that_every_system_has_are_told_from_others() -> None:
    usual = ["libc.so.6", "libpthread.so.0", "libgcc_s.so.1", "ld-linux-x86-64.so.2"]
    assert [name for name in usual if not release_wheel.ALLOWED.fullmatch(name)] == []
    for name in ("libmpi.so.40", "libstdc++.so.6", "libcudart.so.12"):
        assert not release_wheel.ALLOWED.fullmatch(name)
