"""Allreduces that come back in every step: what does not change is prepared once.

Gradients of a model of many small tensors cost mostly Python, and on a GPU an event for each. Here
several are started by one call, with one event.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from horovod import _engine
from horovod.common import basics
from horovod.common.operation import How, full_name, set_number
from horovod.torch.collectives.prepared import Prepared, PreparedGroup, kind_of, places_of
from horovod.torch.collectives.results import result_output
from horovod.torch.collectives.start import hand_over
from horovod.torch.compression import compresses


class RepeatedAllreduces:
    """In-place allreduces of several names that are started together.

    Args:
        hows: Of each what is to be done; the process set is the same for all.
    """

    __slots__ = ("_group", "_hows")

    def __init__(self, hows: Sequence[How]) -> None:
        self._hows = hows
        self._group: PreparedGroup | None = None

    def start(self, tensors: Sequence[torch.Tensor]) -> int:
        """**Collective.** Start to reduce ``tensors``; return one handle of the script.

        Args:
            tensors: Contiguous ones, as many as names, all on one device.

        Raises:
            ValueError: As ``allreduce_async``; none is started.
            HorovodInternalError: A rank died or the engine was shut down.
        """
        engine, number = basics.engine(), set_number(self._hows[0].process_set)
        pairs = zip(self._hows, tensors, strict=True)
        members = [_prepare(engine, how, number, tensor) for how, tensor in pairs]
        device = members[0].device
        group = PreparedGroup(engine, number, members, device, as_they_lie=True)
        self._group, places, kept = group, places_of(tensors), (tensors, tensors)
        return hand_over(group, places, places, kept, result_output)

    def start_again(self, tensors: Sequence[Any]) -> int | None:
        """**Collective.** As ``start``, of tensors like those before.

        They may be anything, also what went as it lies before (see ``layout``). None:
        they are not like those, and nothing has happened.
        """
        group, engine = self._group, basics.engine()
        number = self._hows[0].process_set.process_set_id
        if group is None or engine is not group.engine or number != group.set_number:
            return None
        places, kept = group.places(tensors), (tensors, tensors)
        if places is None:
            return None
        return hand_over(group, places, places, kept, result_output)


def _prepare(engine: _engine.Engine, how: How, number: int, tensor: torch.Tensor) -> Prepared:
    if not compresses(tensor, how.wire_type):
        how = how._replace(wire_type=None)
    kind = kind_of(engine, how, number, tensor)
    return Prepared(engine, kind, full_name(how.operation, how.name, number), number, tensor)
