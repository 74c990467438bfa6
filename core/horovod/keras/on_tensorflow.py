"""What ``horovod.keras`` is where Keras calculates with TensorFlow."""

from horovod.tensorflow import init, shutdown
from horovod.tensorflow import keras_support as _keras_support  # noqa: F401
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.elastic import run as elastic_run
from horovod.tensorflow.keras.values import allgather, allreduce, broadcast, reducescatter

__all__ = [
    "Compression",
    "allgather",
    "allreduce",
    "broadcast",
    "elastic_run",
    "init",
    "reducescatter",
    "shutdown",
]
