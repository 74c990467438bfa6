"""Horovod's PyTorch API: ``import horovod.torch as hvd``."""

from __future__ import annotations

from horovod.common.basics import *  # noqa: F403
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.common.process_sets import *  # noqa: F403
from horovod.common.util import check_extension  # noqa: F401
from horovod.torch import autotune, elastic
from horovod.torch import mpi_ops as _mpi_ops
from horovod.torch.compression import Compression
from horovod.torch.cuda import check_has_gpu as _check_has_gpu  # noqa: F401
from horovod.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from horovod.torch.mpi_ops import init, shutdown
from horovod.torch.operations import *  # noqa: F403
from horovod.torch.optimizer import DistributedOptimizer
from horovod.torch.sync_batch_norm import SyncBatchNorm

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "SyncBatchNorm",
    "allgather_object",
    "autotune",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "elastic",
    "init",
    "shutdown",
]
__all__ += _mpi_ops.__all__
__all__.sort()
