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
from horovod.common.exceptions import HorovodInternalError
from horovod.torch import cuda, handles
from horovod.torch.collectives import plans, request
from horovod.torch.collectives.plans import GroupPlan, Plan
from horovod.torch.collectives.reduce_ops import ENGINE_NAMES, How
from horovod.torch.handles import Operation


class RepeatedAllreduces:
    """In-place allreduces of several names that are started together.

    Args:
        hows: Of each its name, reduction, factors and process set; the latter is the same for all.
    """

    __slots__ = ("_engine", "_hows", "_number", "_plan")

    def __init__(self, hows: Sequence[How]) -> None:
        self._hows = hows
        self._engine: _engine.Engine | None = None
        self._number: int | None = None
        self._plan: GroupPlan | None = None

    def start(self, tensors: Sequence[torch.Tensor]) -> int:
        """**Collective.** Start to reduce ``tensors``; return one handle of the script.

        Args:
            tensors: Contiguous ones, as many as names, all on one device.

        Raises:
            ValueError: As ``allreduce_async``; none is started.
            HorovodInternalError: A rank died or the engine was shut down.
        """
        engine = basics.engine()
        number = self._hows[0].process_set.process_set_id
        members = [_plan(engine, how, t) for how, t in zip(self._hows, tensors, strict=True)]
        self._plan = GroupPlan(members, members[0].device, as_they_lie=True)
        self._number, self._engine = number, engine
        return self._start(self._plan, plans.places_of(tensors), tensors)

    def start_again(self, tensors: Sequence[Any]) -> int | None:
        """**Collective.** As ``start``, of tensors like those before.

        They may be anything, also what went as it lies before (see ``layout``). None:
        they are not like those, and nothing has happened.
        """
        plan, engine = self._plan, basics.engine()
        number = self._hows[0].process_set.process_set_id
        if plan is None or engine is not self._engine or number != self._number:
            return None
        places = plan.places(tensors)
        return None if places is None else self._start(plan, places, tensors)

    def _start(
        self, plan: GroupPlan, places: _engine.Places, tensors: Sequence[torch.Tensor]
    ) -> int:
        engine, device = self._engine, plan.device
        assert engine is not None
        stream = 0 if device < 0 else cuda.current_stream(device)
        try:
            first = engine.start_all(plan.prepared, places, places, stream)
        except _engine.InvalidRequest as error:
            raise ValueError(str(error)) from None
        except _engine.EngineError as error:
            raise HorovodInternalError(str(error)) from None
        numbers = range(first, first + len(tensors))
        kept = tensors, tensors
        finish = request.result_output
        return handles.add(Operation(engine, numbers, kept, finish, False, device, stream))


def _plan(engine: _engine.Engine, how: How, tensor: torch.Tensor) -> Plan:
    arguments = {
        "reduce_op": ENGINE_NAMES[how.op],
        "prescale": how.prescale,
        "postscale": how.postscale,
        "wire_type": how.wire_type if request.compresses(tensor, how.wire_type) else None,
    }
    number = request.set_id(how.process_set)
    kind = plans.kind(engine, "allreduce", tensor, number, True, arguments)
    return Plan(kind, f"allreduce.{how.name}", tensor)
