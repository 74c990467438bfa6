"""What ``horovod.keras`` is where Keras calculates with PyTorch: nothing imports TensorFlow.

Keras hands the gradients over when the backward pass is done, so that they travel together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from horovod._keras import support
from horovod.common.gradients import (
    Options,
    next_number,
    note_reduction,
    positions_of_groups,
    underlying,
    warn_at_exit,
)
from horovod.common.operation import Kept
from horovod.common.reduce_ops import Average, Min
from horovod.common.variables import Watch
from horovod.torch import mpi_ops, operations
from horovod.torch.compression import Compression, Compressor
from horovod.torch.elastic import run as elastic_run
from horovod.torch.mpi_ops import shutdown
from horovod.tuning import autotuning

__all__ = [
    "Compression",
    "allgather",
    "allreduce",
    "broadcast",
    "elastic_run",
    "init",
    "reducescatter",
    "shutdown",
]

_watches: Kept[str, Watch] = Kept()


def init(comm: object = None, process_sets: object = None) -> None:
    """**Collective.** Start the runtime; arguments and errors as ``horovod.torch.init``."""
    mpi_ops.init(comm, process_sets)
    warn_at_exit()


class Accumulator:
    """Sums of the gradients since the last reduction.

    Attributes:
        counter: Passes since then.
    """

    def __init__(self) -> None:
        self.counter = 0
        self.sums: dict[int, torch.Tensor] = {}

    def forget(self) -> None:
        """**Local.** Begin anew, whatever was summed."""
        self.counter = 0
        self.sums.clear()


class Reduction:
    """How the gradients of one optimizer are reduced; see ``horovod._keras.support.Reduction``."""

    def __init__(self, options: Options, number: int) -> None:
        self._options = options
        self._label = f"optimizer.{number}"
        self._number: int | None = None
        self._local: dict[int, Any] = {}
        self.accumulator = Accumulator() if options.passes > 1 else None

    def register_local(self, variable: Any) -> None:
        """**Local**, every rank alike. Do not reduce the gradient of ``variable``."""
        self._local[id(underlying(variable))] = variable

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """**Collective.** Return the reduced ``gradients``, None where there is none.

        Raises:
            HorovodInternalError: The reduction failed on all ranks, or a rank died.
        """
        options, result = self._options, list(gradients)
        note_reduction()
        if self._number is None:
            self._number = autotuning.register_optimizer(None)
        if options.communicates:
            there = [i for i, gradient in enumerate(result) if gradient is not None]
            local = {i for i in there if id(underlying(variables[i])) in self._local}
            if options.scale_local_gradients:
                for i in local:
                    result[i] = result[i] / options.process_set.size()
            self._reduce(result, [i for i in there if i not in local], variables)
        autotuning.optimizer_synchronized(self._number)
        return result

    def accumulate(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """**Collective** in the last of several passes. Add ``gradients`` to those before."""
        state = self.accumulator
        assert state is not None
        for i, gradient in enumerate(gradients):
            if gradient is not None:
                state.sums[i] = state.sums[i] + gradient if i in state.sums else gradient.clone()
        state.counter += 1
        if state.counter < self._options.passes:
            return list(gradients)
        sums = [state.sums.get(i) for i in range(len(gradients))]
        if self._options.average_passes:
            sums = [None if total is None else total / self._options.passes for total in sums]
        state.counter = 0
        state.sums.clear()
        return self.reduce(sums, variables)

    def apply_if_complete(
        self, apply: Callable[[], object], otherwise: Callable[[], object] = lambda: None
    ) -> object:
        """**Local.** Call ``apply`` after the last of several passes, else ``otherwise``."""
        complete = self.accumulator is None or self.accumulator.counter == 0
        return (apply if complete else otherwise)()

    def agree(self, verdict: Any) -> Any:
        """**Collective.** Return whether ``verdict``, a boolean tensor, is true on all ranks."""
        if not self._options.communicates:
            return verdict
        own = verdict.detach().to("cpu", torch.int32).reshape(1)
        name, process_set = f"{self._label}.agree", self._options.process_set
        agreed = operations.allreduce(own, op=Min, name=name, process_set=process_set)
        return (agreed > 0).reshape(verdict.shape).to(verdict.device)

    def _reduce(self, result: list[Any], wanted: list[int], variables: Sequence[Any]) -> None:
        """Replace the ``wanted`` ones of ``result``."""
        options = self._options
        if not wanted:
            return
        watch = _watches.get(self._label)
        if watch is None:
            members = options.process_set
            watch = Watch([variables[i] for i in wanted], members, next_number("watch", members))
            _watches.keep(self._label, watch)
        watch.look()
        groups = positions_of_groups(options.groups, variables, wanted)
        if options.groups is None:
            groups = [wanted]
        started = []
        for group in groups:
            packed = [options.compression.compress(result[i].detach()) for i in group]
            handle = operations.grouped_allreduce_async(
                [tensor.contiguous() for tensor, _ in packed],
                name=f"{self._label}.from{group[0]}",
                op=options.op,
                prescale_factor=options.prescale_factor,
                postscale_factor=options.postscale_factor,
                process_set=options.process_set,
            )
            started.append((group, [context for _, context in packed], handle))
        for group, contexts, handle in started:
            for i, context, tensor in zip(
                group, contexts, operations.synchronize(handle), strict=True
            ):
                result[i] = options.compression.decompress(tensor, context)


support.register(
    support.Support(name="torch", make_reduction=Reduction, entry=lambda method: method)
)


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: type[Compressor] = Compression.none,
) -> torch.Tensor:
    """**Collective.** Return the reduction of ``value`` over all ranks.

    Args:
        value: A number, array or tensor; the same shape and type on all ranks.
        name: Name of the operation, the same on all ranks.
        average: Deprecated: True means ``op=Average``, False ``op=Sum``.
        prescale_factor: Factor before the reduction.
        postscale_factor: Factor after it.
        op: Average (default), Sum, Adasum, Min, Max or Product.
        compression: How it travels.

    Raises:
        ValueError: It is refused.
        HorovodInternalError: The operation failed on all ranks, or a rank died.
    """
    reduced: torch.Tensor = operations.allreduce(
        torch.as_tensor(value),
        average=average,
        name=name,
        compression=compression,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )
    return reduced


def allgather(value: Any, name: str | None = None) -> torch.Tensor:
    """**Collective.** Return the ranks' values one after the other, along the first dimension.

    Arguments and errors as ``allreduce``; the first dimension may differ.
    """
    gathered: torch.Tensor = operations.allgather(torch.as_tensor(value), name=name)
    return gathered


def broadcast(value: Any, root_rank: int, name: str | None = None) -> torch.Tensor:
    """**Collective.** Return root's ``value``; arguments and errors as ``allreduce``."""
    sent: torch.Tensor = operations.broadcast(torch.as_tensor(value), root_rank, name=name)
    return sent


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> torch.Tensor:
    """**Collective.** Return this rank's part of the reduction of ``value``, cut along its rows.

    Arguments and errors as ``allreduce``; ``op`` is Average or Sum.
    """
    part: torch.Tensor = operations.reducescatter(torch.as_tensor(value), name=name, op=op)
    return part
