"""Keras, and what it calculates with."""

from __future__ import annotations

from typing import Any

from horovod.common.packages import is_installed

if not is_installed("keras"):
    raise ImportError("horovod.keras needs Keras, which is not installed: pip install keras")
import keras

__all__ = ["front", "keras"]


def _front_of(backend: str) -> Any:
    """Return what is different with each framework.

    Raises:
        ImportError: Keras calculates with another one.
    """
    if backend == "tensorflow":
        from horovod.keras import on_tensorflow

        return on_tensorflow
    if backend == "torch":
        from horovod.keras import on_torch

        return on_torch
    raise ImportError(
        f"horovod.keras: Keras's backend is {backend}; only TensorFlow and PyTorch are served: set "
        "KERAS_BACKEND to tensorflow or torch"
    )


front = _front_of(keras.backend.backend())
"""Collectives, start and end of the runtime for the framework in use."""
