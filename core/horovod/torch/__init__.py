"""Horovod's PyTorch API: ``import horovod.torch as hvd``."""

from __future__ import annotations

from typing import NoReturn

from horovod import autotuning as _autotuning
from horovod import basics as _basics
from horovod.basics import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    size,
    start_timeline,
    stop_timeline,
)
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from horovod.torch import autotune
from horovod.torch import operations as _operations
from horovod.torch.compression import Compression
from horovod.torch.differentiable import (
    allgather,
    allreduce,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
)
from horovod.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from horovod.torch.operations import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    allgather_async,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    barrier,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather_async,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    poll,
    synchronize,
)
from horovod.torch.optimizer import DistributedOptimizer

_LATER = (
    "SyncBatchNorm",
    "alltoall",
    "alltoall_async",
    "elastic",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "reducescatter",
    "reducescatter_async",
    "sparse_allreduce_async",
)

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "autotune",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]


def init(comm: object = None, process_sets: object = None) -> None:
    """Start the runtime. **Collective:** all ranks. Does nothing when it runs already.

    Args:
        comm: None (all ranks), a list of world ranks, or an mpi4py communicator (duplicated).
        process_sets: Only None or an empty list in this version.

    Raises:
        ValueError: A setting is wrong, or the ranks disagree on one; the same error on every rank.
        RuntimeError: No MPI, a wrong launcher, a forked child, or the ranks do not connect.
    """
    _autotuning.init(comm, process_sets)


def shutdown() -> None:
    """End the runtime; pending operations fail on all ranks. ``init`` may be called again."""
    _basics.shutdown()
    _operations.reset()


def __getattr__(name: str) -> NoReturn:
    if name in _LATER:
        raise AttributeError(f"horovod.torch.{name} is not supported in this version")
    raise AttributeError(f"module 'horovod.torch' has no attribute {name!r}")
