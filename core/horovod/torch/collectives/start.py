"""The one way from tensors to operations of the engine: nothing else in this package starts any.

``start`` takes one tensor, ``start_group`` several; an operation that comes back goes by what was
prepared for it the first time. ``run`` is ``start`` and the wait for it in one call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from horovod import _engine
from horovod.common import basics
from horovod.common.exceptions import HorovodInternalError
from horovod.common.operation import How, Kept, full_name, make_kind, set_number, take_name_back
from horovod.common.reduce_ops import Adasum
from horovod.torch import cuda, handles
from horovod.torch.collectives.prepared import (
    Prepared,
    PreparedGroup,
    expect_tensor,
    kind_of,
    places_of,
)
from horovod.torch.collectives.results import result_output
from horovod.torch.handles import Operation
from horovod.tuning import autotuning

Finish = Callable[[Operation], Any]

_prepared: Kept[How, Prepared] = Kept()
_prepared_groups: Kept[tuple[How, int], PreparedGroup] = Kept()


def start(
    how: How,
    tensor: torch.Tensor,
    output: torch.Tensor | None,
    finish: Finish = result_output,
    splits: Sequence[int] = (),
) -> int:
    """**Collective.** Hand one tensor to the engine; return the script's handle.

    Args:
        how: What is to be done.
        tensor: Input.
        output: Where the result goes; None: the engine allocates it (see ``results``).
        finish: Makes the result once the operation is complete.
        splits: Of an alltoall, as ``_engine.Engine.start``.

    Raises:
        ValueError: The request is refused.
        HorovodInternalError: A rank died or the engine was shut down.
    """
    engine = basics.engine()  # not in a forked child
    prepared = None if splits else _prepared.get(how)
    handle = None
    try:
        if (
            prepared is not None
            and prepared.engine is engine
            and prepared.set_number == how.process_set.process_set_id
        ):
            device = prepared.device
            stream = 0 if device < 0 else cuda.current_stream(device)
            handle = prepared.start(tensor, output, stream)
        if handle is None:
            expect_tensor(tensor)
            if how.op == Adasum and tensor.is_cuda:
                return _start_on_host(how, tensor, output)
            device = tensor.get_device()
            stream = 0 if device < 0 else cuda.current_stream(device)
            handle = _start_first(engine, how, tensor, output, stream, splits)
    except _engine.InvalidRequest as error:
        raise ValueError(str(error)) from None
    except _engine.EngineError as error:
        raise HorovodInternalError(str(error)) from None
    kept = tensor, output
    return handles.add(Operation(engine, (handle,), kept, finish, output is None, device, stream))


def run(how: How, tensor: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """**Collective.** As ``start``, then wait; return ``output``.

    The shortest way through Python: a loop over small tensors spends most of its time here.
    """
    engine = basics.engine()  # not in a forked child
    prepared = _prepared.get(how)
    if (
        prepared is not None
        and prepared.engine is engine
        and prepared.set_number == how.process_set.process_set_id
        and prepared.runner is not None
        and _run(prepared, prepared.runner, tensor, output)
    ):
        return output
    result: torch.Tensor = handles.synchronize(start(how, tensor, output))
    return result


def start_group(
    how: How,
    tensors: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor] | None,
    finish: Finish,
) -> int:
    """**Collective.** Hand several tensors to the engine at once, under one handle.

    Arguments and errors as ``start``; names are ``grouped_<operation>.<name>_<i>of<n>``.
    """
    if how.op == Adasum and outputs is not None and any(tensor.is_cuda for tensor in tensors):
        return _start_group_on_host(how, tensors, outputs)
    engine, number, count = basics.engine(), set_number(how.process_set), len(tensors)
    group = _prepared_groups.get((how, count))
    inputs = None
    if group is not None and group.engine is engine and group.set_number == number:
        inputs = group.places(tensors)
    if group is None or inputs is None:
        group, inputs = _prepare_group(engine, how, tensors, number), places_of(tensors)
        if how.name is not None:
            _prepared_groups.keep((how, count), group)
    if outputs is tensors:
        places = inputs
    elif outputs is None:
        places = _engine.Places([0] * count)
    else:
        places = group.places(outputs) or places_of(outputs)
    try:
        return hand_over(group, inputs, places, (tensors, outputs), finish, as_group=True)
    except ValueError:
        take_name_back(f"grouped_{how.operation}", how.name, number)
        raise


def hand_over(
    group: PreparedGroup,
    inputs: _engine.Places,
    outputs: _engine.Places,
    kept: tuple[Any, ...],
    finish: Finish,
    *,
    as_group: bool = False,
) -> int:
    """**Collective.** Start the operations of ``group``; return one handle of the script.

    Args:
        group: What is to be done.
        inputs: Where its tensors lie.
        outputs: Where the results go.
        kept: The tensors, and where results go: None where the engine allocates them.
        finish: As of ``start``.
        as_group: They belong together: HOROVOD_DISABLE_GROUP_FUSION keeps others apart from them.
    """
    engine, device = group.engine, group.device
    stream = 0 if device < 0 else cuda.current_stream(device)
    engine_start = engine.start_group if as_group else engine.start_all
    try:
        first = engine_start(group.operations, inputs, outputs, stream)
    except _engine.InvalidRequest as error:
        raise ValueError(str(error)) from None
    except _engine.EngineError as error:
        raise HorovodInternalError(str(error)) from None
    numbers, in_engine = range(first, first + len(kept[0])), kept[1] is None
    return handles.add(Operation(engine, numbers, kept, finish, in_engine, device, stream))


def start_meeting(how: How, finish: Finish) -> int:
    """**Collective.** Start an operation without a tensor; return the script's handle."""
    engine = basics.engine()
    try:
        kind = make_kind(how, set_number(how.process_set), "uint8")
        handle = engine.start(kind, f"{how.operation}.noname", 0, 0, ())
    except _engine.InvalidRequest as error:
        raise ValueError(str(error)) from None
    except _engine.EngineError as error:
        raise HorovodInternalError(str(error)) from None
    return handles.add(Operation(engine, (handle,), (), finish))


def _start_first(
    engine: _engine.Engine,
    how: How,
    tensor: torch.Tensor,
    output: torch.Tensor | None,
    stream: int,
    splits: Sequence[int],
) -> int:
    """Start an operation for which nothing is prepared, and prepare for it if it may come back."""
    number = set_number(how.process_set)
    kind = kind_of(engine, how, number, tensor)
    name = full_name(how.operation, how.name, number)
    place, other = tensor.data_ptr(), 0 if output is None else output.data_ptr()
    try:
        handle = engine.start(kind, name, place, other, tensor.shape, stream, splits)
    except _engine.InvalidRequest:
        take_name_back(how.operation, how.name, number)
        raise
    if how.name is not None and not splits:
        prepared = Prepared(engine, kind, name, number, tensor)
        if output is not None:
            prepared.prepare_to_run()
        _prepared.keep(how, prepared)
    return handle


def _run(
    prepared: Prepared, runner: _engine.Runner, tensor: torch.Tensor, output: torch.Tensor
) -> bool:
    """Do the operation at once if it is the same as before; False: it is not."""
    engine, device = prepared.engine, prepared.device
    stream = 0 if device < 0 else cuda.current_stream(device)
    try:
        done = runner.run(tensor, output, stream)
    except BaseException as error:
        if runner.pending >= 0:  # let go of by the next operation that is not repeated
            kept, waited = (tensor, output), (runner.pending,)
            handles.abandon(Operation(engine, waited, kept, result_output, False, device, stream))
        if isinstance(error, _engine.InvalidRequest):
            raise ValueError(str(error)) from None
        if isinstance(error, _engine.EngineError):
            handles.keep_for_messages((tensor, output))
            raise HorovodInternalError(str(error)) from None
        raise
    if done:
        autotuning.tick()
    return done


def _prepare_group(
    engine: _engine.Engine, how: How, tensors: Sequence[torch.Tensor], number: int
) -> PreparedGroup:
    devices = {tensor.get_device() for tensor in tensors}
    if len(devices) > 1:
        found = " and ".join(sorted({str(tensor.device) for tensor in tensors}))
        raise ValueError(f"{how.operation}: expected a group on one device, got {found}")
    kinds = [kind_of(engine, how, number, tensor) for tensor in tensors]
    name, count = full_name(f"grouped_{how.operation}", how.name, number), len(tensors)
    members = [
        Prepared(engine, kind, f"{name}_{i}of{count}", number, tensor)
        for i, (kind, tensor) in enumerate(zip(kinds, tensors, strict=True), 1)
    ]
    return PreparedGroup(engine, number, members, max(devices, default=cuda.HOST))


def _start_on_host(how: How, tensor: torch.Tensor, output: torch.Tensor | None) -> int:
    """As ``start``, of a copy: only the CPU can do Adasum."""
    assert output is not None
    copy = tensor.cpu()

    def copy_back(operation: Operation) -> torch.Tensor:
        output.detach().copy_(copy)
        return output

    return start(how, copy, copy, copy_back)


def _start_group_on_host(
    how: How, tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> int:
    copies = [tensor.cpu() for tensor in tensors]

    def copy_back(operation: Operation) -> Sequence[torch.Tensor]:
        for output, copy in zip(outputs, copies, strict=True):
            output.detach().copy_(copy)
        return outputs

    return start_group(how, copies, copies, copy_back)
