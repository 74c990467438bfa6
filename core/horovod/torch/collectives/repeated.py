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
from horovod.torch.collectives import request
from horovod.torch.collectives.reduce_ops import ENGINE_NAMES, How
from horovod.torch.handles import Operation


class RepeatedAllreduce:
    """The in-place allreduce of one name.

    Args:
        how: Name, reduction, factors and process set.
    """

    __slots__ = ("_device", "_dtype", "_engine", "_how", "_number", "_prepared", "_shape")

    def __init__(self, how: How) -> None:
        self._how = how
        self._dtype: torch.dtype | None = None
        self._shape: torch.Size | None = None
        self._number: int | None = None
        self._device = cuda.HOST
        self._engine: _engine.Engine | None = None
        self._prepared: _engine.Prepared

    def prepare(self, engine: _engine.Engine, tensor: torch.Tensor) -> _engine.Prepared:
        """**Local.** Return the engine's description of reducing ``tensor``.

        Raises:
            ValueError: Unsuitable tensor, or the process set is not registered.
        """
        if (
            tensor.dtype is not self._dtype
            or tensor.shape != self._shape
            or tensor.get_device() != self._device
            or self._how.process_set.process_set_id != self._number
            or engine is not self._engine
        ):
            self._prepare(engine, tensor)
        elif not tensor.is_contiguous():
            request.check(tensor)
        return self._prepared

    def _prepare(self, engine: _engine.Engine, tensor: torch.Tensor) -> None:
        how = self._how
        dtype, number = request.check(tensor), request.set_id(how.process_set)
        device = tensor.get_device()
        compresses = request.compresses(tensor, how.wire_type)
        kind = request.make_kind(
            engine,
            device,
            operation="allreduce",
            dtype=dtype,
            process_set=number,
            reduce_op=ENGINE_NAMES[how.op],
            prescale=how.prescale,
            postscale=how.postscale,
            wire_type=how.wire_type if compresses else None,
        )
        self._prepared = _engine.Prepared(kind, f"allreduce.{how.name}", tensor.shape)
        self._dtype, self._shape, self._device = tensor.dtype, tensor.shape, device
        self._number, self._engine = number, engine


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
    prepared = [each.prepare(engine, t) for each, t in zip(repeated, tensors, strict=True)]
    places = [tensor.data_ptr() for tensor in tensors]
    device = tensors[0].get_device()
    stream = 0 if device < 0 else cuda.current_stream(device)
    try:
        first = engine.start_all(prepared, places, places, stream)
    except _engine.InvalidRequest as error:
        raise ValueError(str(error)) from None
    except _engine.EngineError as error:
        raise HorovodInternalError(str(error)) from None
    numbers = list(range(first, first + len(places)))
    kept = tensors, tensors
    finish = request.result_output
    return handles.add(Operation(engine, numbers, kept, finish, False, device, stream))
