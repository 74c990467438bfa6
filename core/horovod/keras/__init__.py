"""Horovod's API for Keras, on TensorFlow or PyTorch: ``import horovod.keras as hvd``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from horovod.keras.library import front as _front  # first: says what is missing
from horovod.keras.library import keras as _keras

# isort: split
from horovod._keras.api import (
    DistributedOptimizer,
    PartialDistributedOptimizer,
    broadcast_global_variables,
    load_model_by,
)
from horovod.common import basics as _basics
from horovod.common import process_sets as _process_sets
from horovod.common.basics import *  # noqa: F403
from horovod.common.compression import Compressor, NoneCompressor
from horovod.common.process_sets import *  # noqa: F403
from horovod.common.reduce_ops import Adasum, Average, Max, Min, Product, Sum
from horovod.keras import autotune, callbacks, elastic

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Max",
    "Min",
    "PartialDistributedOptimizer",
    "Product",
    "Sum",
    "allgather",
    "allreduce",
    "autotune",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "elastic",
    "init",
    "load_model",
    "reducescatter",
    "shutdown",
]
__all__ += _basics.__all__
__all__ += _process_sets.__all__
__all__.sort()


Compression = _front.Compression
allgather = _front.allgather
allreduce = _front.allreduce
broadcast = _front.broadcast
init = _front.init
reducescatter = _front.reducescatter
shutdown = _front.shutdown


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: type[Compressor] = NoneCompressor,
) -> Any:
    """**Local**, every rank alike. Return a saved model with a distributed optimizer.

    Args:
        filepath: Of the model, saved with or without Horovod.
        custom_optimizers: Classes of optimizers that are not Keras's own.
        custom_objects: {name: class or function} of anything else.
        compression: How gradients travel.

    Raises:
        ValueError: As Keras's ``load_model``.
    """
    load = _keras.models.load_model
    return load_model_by(load, filepath, custom_optimizers, custom_objects, compression)
