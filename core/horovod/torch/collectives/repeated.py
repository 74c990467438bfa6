"""An allreduce that comes back in every step: what does not change is prepared once.

Gradients of a model of many small tensors cost mostly Python; this is the shortest way from a
gradient to the engine.
"""

from __future__ import annotations

from typing import Any

import torch

from horovod import _engine, basics
from horovod.common.exceptions import HorovodInternalError
from horovod.torch import handles
from horovod.torch.collectives import request
from horovod.torch.collectives.reduce_ops import ENGINE_NAMES, How
from horovod.torch.handles import Operation


class RepeatedAllreduce:
    """The in-place allreduce of one name.

    Args:
        how: Name, reduction, factors and process set.
    """

    __slots__ = ("_dtype", "_process_set", "_request", "_shape")

    def __init__(self, how: How) -> None:
        self._process_set = how.process_set
        self._dtype: torch.dtype | None = None
        self._shape: torch.Size | None = None
        self._request: dict[str, Any] = {
            "operation": "allreduce",
            "name": f"allreduce.{how.name}",
            "named": True,
            "reduce_op": ENGINE_NAMES[how.op],
            "prescale": how.prescale,
            "postscale": how.postscale,
        }

    def start(self, tensor: torch.Tensor) -> int:
        """**Collective.** As ``allreduce_async_``; returns the script's handle."""
        if tensor.dtype is not self._dtype or tensor.shape != self._shape:
            self._prepare(tensor)
        elif not (tensor.is_cpu and tensor.is_contiguous()):
            request.check(tensor)
        engine = basics.engine()
        address = tensor.data_ptr()
        number = self._process_set.process_set_id
        if number is None:
            number = request.set_id(self._process_set)
        try:
            handle = engine.enqueue(
                input=address, output=address, process_set=number, **self._request
            )
        except _engine.InvalidRequest as error:
            raise ValueError(str(error)) from None
        except _engine.EngineError as error:
            raise HorovodInternalError(str(error)) from None
        return handles.add(Operation(engine, [handle], (tensor, tensor), request.result_output))

    def _prepare(self, tensor: torch.Tensor) -> None:
        self._request["dtype"] = request.check(tensor)
        self._request["shape"] = self._shape = tensor.shape
        self._dtype = tensor.dtype
