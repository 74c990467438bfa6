"""Horovod's TensorFlow API: ``import horovod.tensorflow as hvd``."""

from __future__ import annotations

from horovod.tensorflow import library as _library  # first: says what is missing  # noqa: F401

# isort: split
from horovod.common.basics import *  # noqa: F403
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.common.process_sets import *  # noqa: F403
from horovod.common.util import gpu_available as gpu_available
from horovod.tensorflow import autotune, elastic
from horovod.tensorflow import functions as _functions
from horovod.tensorflow import mpi_ops as _mpi_ops
from horovod.tensorflow import operations as _operations
from horovod.tensorflow import tape as _tape
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.functions import *  # noqa: F403
from horovod.tensorflow.mpi_ops import *  # noqa: F403
from horovod.tensorflow.mpi_ops import (
    _allreduce as _allreduce,
)
from horovod.tensorflow.mpi_ops import (
    _grouped_allreduce as _grouped_allreduce,
)
from horovod.tensorflow.mpi_ops import (
    _grouped_reducescatter as _grouped_reducescatter,
)
from horovod.tensorflow.mpi_ops import (
    _reducescatter as _reducescatter,
)
from horovod.tensorflow.operations import *  # noqa: F403
from horovod.tensorflow.optimizer import DistributedOptimizer
from horovod.tensorflow.sync_batch_norm import SyncBatchNormalization
from horovod.tensorflow.tape import *  # noqa: F403
from horovod.tensorflow.util import _executing_eagerly as _executing_eagerly

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "SyncBatchNormalization",
    "autotune",
    "elastic",
]
__all__ += sorted({*_mpi_ops.__all__, *_operations.__all__, *_functions.__all__, *_tape.__all__})
__all__.sort()
