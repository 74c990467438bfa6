"""Horovod's module path for the collectives and the rank functions; scripts import from here."""

from __future__ import annotations

from horovod.common import basics as _basics
from horovod.common import process_sets as _process_sets
from horovod.common.basics import *  # noqa: F403
from horovod.common.exceptions import HorovodInternalError as HorovodInternalError
from horovod.common.process_sets import *  # noqa: F403
from horovod.common.reduce_ops import (
    handle_average_backwards_compatibility as handle_average_backwards_compatibility,
)
from horovod.common.util import check_extension as check_extension
from horovod.common.util import gpu_available as gpu_available
from horovod.common.util import num_rank_is_power_2 as num_rank_is_power_2
from horovod.torch import operations as _operations
from horovod.torch.agent_store import open_store as _open_store
from horovod.torch.compression import Compression as Compression
from horovod.torch.operations import *  # noqa: F403
from horovod.tuning import autotuning as _autotuning

__all__ = ["init", "shutdown", *_process_sets.__all__]
__all__ += _basics.__all__
__all__ += _operations.__all__


def init(comm: object = None, process_sets: object = None) -> None:
    """Start the runtime. **Collective:** all ranks. Does nothing when it runs already.

    Args:
        comm: None (all ranks), a list of world ranks, or an mpi4py communicator (duplicated);
            processes that a list leaves out get a ValueError.
        process_sets: None, a list of process sets (or of rank lists), the same on all ranks, or
            "dynamic"; sets may be added and removed later in any case.

    Raises:
        ValueError: A setting is wrong, or the ranks disagree on one; the same error on every rank.
        RuntimeError: A wrong launcher, launchers' variables that disagree, a forked child, or the
            ranks do not meet or connect.
    """
    _autotuning.init(comm, process_sets, _open_store)


def shutdown() -> None:
    """End the runtime; pending operations fail on all ranks. ``init`` may be called again.

    Process sets are forgotten; the same objects may be registered again.
    """
    _basics.shutdown()
    _operations.reset()
