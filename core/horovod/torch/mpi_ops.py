"""Horovod's module path for the collectives and the rank functions; scripts import from here."""

from horovod.common import basics as _basics
from horovod.common import process_sets as _process_sets
from horovod.common.basics import *  # noqa: F403
from horovod.common.process_sets import *  # noqa: F403
from horovod.torch import operations as _operations
from horovod.torch.operations import *  # noqa: F403

__all__ = [*_process_sets.__all__]
__all__ += _basics.__all__
__all__ += _operations.__all__
