"""Horovod's PyTorch API: ``import horovod.torch as hvd``."""

from __future__ import annotations

from horovod.common import basics as _basics
from horovod.common.basics import *  # noqa: F403
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.common.process_sets import *  # noqa: F403
from horovod.torch import autotune, elastic
from horovod.torch import mpi_ops as _mpi_ops
from horovod.torch import operations as _operations
from horovod.torch.compression import Compression
from horovod.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from horovod.torch.operations import *  # noqa: F403
from horovod.torch.optimizer import DistributedOptimizer
from horovod.torch.sync_batch_norm import SyncBatchNorm
from horovod.tuning import autotuning as _autotuning

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


def init(comm: object = None, process_sets: object = None) -> None:
    """Start the runtime. **Collective:** all ranks. Does nothing when it runs already.

    Args:
        comm: None (all ranks), a list of world ranks, or an mpi4py communicator (duplicated);
            processes that a list leaves out get a ValueError.
        process_sets: None, a list of process sets (or of rank lists), the same on all ranks, or
            "dynamic"; sets may be added and removed later in any case.

    Raises:
        ValueError: A setting is wrong, or the ranks disagree on one; the same error on every rank.
        RuntimeError: No MPI, a wrong launcher, a forked child, or the ranks do not connect.
    """
    _autotuning.init(comm, process_sets)


def shutdown() -> None:
    """End the runtime; pending operations fail on all ranks. ``init`` may be called again.

    Process sets are forgotten; the same objects may be registered again.
    """
    _basics.shutdown()
    _operations.reset()
