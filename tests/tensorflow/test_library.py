"""The native library and the TensorFlow that loads it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from horovod import _engine
from horovod.runner import check_build

LIBRARY = Path(_engine.__file__).parent / "tensorflow" / "libhorovod_tensorflow.so"


def fails_with(code: str) -> str:
    """Return the last line of a program that fails."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert done.returncode == 1, done.stderr
    return done.stderr.splitlines()[-1]


def test_it_is_linked_with_nothing_of_tensorflow() -> None:
    needed = subprocess.run(
        ["readelf", "-d", str(LIBRARY)], capture_output=True, text=True, check=True
    ).stdout
    assert "tensorflow" not in "".join(line for line in needed.splitlines() if "NEEDED" in line)


def test_without_tensorflow_in_the_process_it_says_what_is_missing() -> None:
    code = (
        "import ctypes\n"
        f"library = ctypes.CDLL({str(LIBRARY)!r})\n"
        "library.horovod_tensorflow_problem.restype = ctypes.c_char_p\n"
        "raise SystemExit(library.horovod_tensorflow_problem().decode())"
    )
    assert "has not loaded libtensorflow_framework.so.2" in fails_with(code)


def test_an_old_tensorflow_is_one_sentence() -> None:
    code = "import tensorflow; tensorflow.__version__ = '2.15.1'; import horovod.tensorflow"
    assert "needs TensorFlow 2.16 or newer, got 2.15.1" in fails_with(code)


def test_a_tensorflow_that_does_not_fit_is_one_sentence() -> None:
    code = (
        "import ctypes, horovod.tensorflow.library as library\n"
        "class Other:\n"
        "    def horovod_tensorflow_problem(self): return b'it has no TF_Something'\n"
        "library._native = Other\n"
        "library.load.cache_clear()\n"
        "library.load()"
    )
    line = fails_with(code)
    assert "does not know TensorFlow" in line
    assert "it has no TF_Something; install another version of TensorFlow" in line


def test_check_build_says_its_version() -> None:
    import tensorflow as tf

    lines = check_build.report().splitlines()
    assert "    [X] TensorFlow" in lines
    assert f"    TensorFlow: version {tf.__version__}" in lines
