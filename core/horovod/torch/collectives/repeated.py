"""Allreduces that come back in every step: what does not change is prepared once.

Gradients of a model of many small tensors cost mostly Python, and on a GPU an event for each. Here
several are started by one call, with one event.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from horovod import _engine, basics
from horovod.common.exceptions import HorovodInternalError
from horovod.torch import cuda, handles
from horovod.torch.collectives import plans, request
from horovod.torch.collectives.plans import Plan
from horovod.torch.collectives.reduce_ops import ENGINE_NAMES, How
from horovod.torch.handles import Operation


class RepeatedAllreduce:
    """The in-place allreduce of one name.

    Args:
        how: Name, reduction, factors and process set.
    """

    __slots__ = ("_engine", "_how", "_number", "_plan")

    def __init__(self, how: How) -> None:
        self._how = how
        self._engine: _engine.Engine | None = None
        self._number: int | None = None
        self._plan: Plan | None = None

    def plan(self, engine: _engine.Engine, tensor: torch.Tensor) -> Plan:
        """**Local.** Return what was prepared to reduce ``tensor``.

        Raises:
            ValueError: Unsuitable tensor, or the process set is not registered.
        """
        number = self._how.process_set.process_set_id
        plan = self._plan
        if (
            plan is None
            or not plan.fits(tensor)
            or number != self._number
            or engine is not self._engine
        ):
            plan = self._plan = self._make_plan(engine, tensor)
            self._number, self._engine = number, engine
        return plan

    def _make_plan(self, engine: _engine.Engine, tensor: torch.Tensor) -> Plan:
        how = self._how
        arguments = {
            "reduce_op": ENGINE_NAMES[how.op],
            "prescale": how.prescale,
            "postscale": how.postscale,
            "wire_type": how.wire_type if request.compresses(tensor, how.wire_type) else None,
        }
        number = request.set_id(how.process_set)
        kind = plans.kind(engine, "allreduce", tensor, number, True, arguments)
        return Plan(kind, f"allreduce.{how.name}", tensor)


def start_all(repeated: Sequence[RepeatedAllreduce], tensors: Sequence[torch.Tensor]) -> int:
    """**Collective.** Start several in-place allreduces; return one handle of the script.

    Args:
        repeated: What is done.
        tensors: To what, in the same order; all on one device.

    Raises:
        ValueError: As ``allreduce_async``; none is started.
        HorovodInternalError: A rank died or the engine was shut down.
    """
    engine = basics.engine()
    made = [each.plan(engine, t) for each, t in zip(repeated, tensors, strict=True)]
    places = [tensor.data_ptr() for tensor in tensors]
    device = tensors[0].get_device()
    stream = 0 if device < 0 else cuda.current_stream(device)
    try:
        first = engine.start_all([plan.prepared for plan in made], places, places, stream)
    except _engine.InvalidRequest as error:
        raise ValueError(str(error)) from None
    except _engine.EngineError as error:
        raise HorovodInternalError(str(error)) from None
    numbers = list(range(first, first + len(places)))
    kept = tensors, tensors
    finish = request.result_output
    return handles.add(Operation(engine, numbers, kept, finish, False, device, stream))
