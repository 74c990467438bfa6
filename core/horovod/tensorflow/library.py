"""The native library: TensorFlow's operations on the engine.

It is built without TensorFlow and finds what it needs in the one that loads it, so one build serves
all its versions; what it takes for granted is looked at while it is loaded.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import threading
from pathlib import Path
from typing import Any

from horovod import _engine
from horovod.common.packages import is_installed

if not is_installed("tensorflow"):
    raise ImportError(
        "horovod.tensorflow needs TensorFlow, which is not installed: pip install tensorflow, or "
        "tensorflow-cpu on machines without GPUs"
    )
import tensorflow as tf

logger = logging.getLogger("horovod")

OLDEST = (2, 16)
"""The oldest version of TensorFlow with which this front end is tested."""

FILE = "libhorovod_tensorflow.so"


@functools.cache
def load() -> Any:
    """**Local.** Return the module of the operations, e.g. ``load().horovod_allreduce``.

    Raises:
        ImportError: The library is missing, or TensorFlow is none that it knows.
    """
    version = tf.__version__
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ImportError(
            f"horovod.tensorflow needs TensorFlow {oldest} or newer, got {version}: "
            "pip install --upgrade tensorflow"
        )
    path = Path(_engine.__file__).parent / "tensorflow" / FILE
    if not path.is_file():
        raise ImportError(
            f"horovod.tensorflow: {path} is missing: pip install --force-reinstall --no-deps "
            "hvd-autotune"
        )
    operations = tf.load_op_library(str(path))
    problem = _native().horovod_tensorflow_problem().decode()
    if problem:
        raise ImportError(
            f"horovod.tensorflow does not know TensorFlow {version}: {problem}; install another "
            "version of TensorFlow"
        )
    if not _native().horovod_tensorflow_attach(_engine.abi()):
        raise ImportError(f"horovod.tensorflow: {path} and {_engine.__file__} are of two builds")
    return operations


@functools.cache
def _native() -> ctypes.CDLL:
    """Return the library itself, which ``load`` has loaded."""
    native = ctypes.CDLL(str(Path(_engine.__file__).parent / "tensorflow" / FILE))
    native.horovod_tensorflow_problem.restype = ctypes.c_char_p
    native.horovod_tensorflow_attach.argtypes = (ctypes.c_void_p,)
    return native


_said = threading.Event()


def say_that_gpus_are_staged() -> None:
    """**Local.** Say once that tensors of GPUs go through the host's memory."""
    if _said.is_set() or not tf.config.list_physical_devices("GPU"):
        return
    _said.set()
    logger.warning(
        "horovod.tensorflow: tensors of GPUs are communicated through the memory of the host: "
        "TensorFlow copies them there and back"
    )
