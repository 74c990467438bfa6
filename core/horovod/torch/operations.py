"""THE list of collectives that scripts call; ``horovod.torch`` and ``.mpi_ops`` take it over."""

from __future__ import annotations

from horovod.common.reduce_ops import resolve_op as resolve_op
from horovod.torch import handles
from horovod.torch.collectives import (
    allgathers,
    allreduces,
    alltoalls,
    broadcasts,
    meetings,
    reducescatters,
    sparse,
)
from horovod.torch.collectives.allgathers import *  # noqa: F403
from horovod.torch.collectives.allreduces import *  # noqa: F403
from horovod.torch.collectives.alltoalls import *  # noqa: F403
from horovod.torch.collectives.broadcasts import *  # noqa: F403
from horovod.torch.collectives.meetings import *  # noqa: F403
from horovod.torch.collectives.reducescatters import *  # noqa: F403
from horovod.torch.collectives.sparse import *  # noqa: F403
from horovod.torch.handles import poll, synchronize

__all__ = ["poll", "synchronize"]
__all__ += allreduces.__all__
__all__ += allgathers.__all__
__all__ += broadcasts.__all__
__all__ += alltoalls.__all__
__all__ += reducescatters.__all__
__all__ += sparse.__all__
__all__ += meetings.__all__


def reset() -> None:
    """**Local.** Forget handles, after ``shutdown``."""
    handles.clear()
