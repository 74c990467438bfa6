"""The GPU of this rank: given to the engine with the first tensor; the script's current stream."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any

import torch

from horovod import _engine
from horovod.common import cuda_libraries
from horovod.tuning.table import offered_nccl_tuner

HOST = -1
"""What ``Tensor.get_device`` calls the CPU."""


def check_has_gpu() -> bool:
    """**Local.** Return whether torch sees a GPU (Horovod's question, which libraries ask)."""
    return bool(torch.cuda.is_available())


def use(engine: _engine.Engine, index: int) -> None:
    """**Local.** Let ``engine`` communicate tensors of GPU ``index``.

    Raises:
        ValueError: It already communicates those of another one.
        RuntimeError: The driver, NCCL or the compiler is missing, or the GPU fails.
    """
    libraries = cuda_libraries.find_libraries()
    try:
        engine.use_device(
            index,
            libraries.nccl,
            libraries.nvrtc,
            functools.partial(_allocate, index),
            os.environ.get("NCCL_HOSTID", ""),
            offered_nccl_tuner(os.environ),
        )
    except _engine.InvalidRequest as error:
        raise ValueError(str(error)) from None
    except _engine.EngineError as error:
        raise RuntimeError(str(error)) from None


def _allocate(index: int, nbytes: int, stream: int) -> tuple[int, torch.Tensor] | None:
    """**Local.** Return memory of GPU ``index`` for use in ``stream``; None: there is none.

    It is torch's, which gives back first what it keeps for later if that helps. A thread of the
    engine calls this.
    """
    try:
        with torch.cuda.stream(_external(stream, index)):
            memory = torch.empty(nbytes, dtype=torch.uint8, device=f"cuda:{index}")
    except torch.cuda.OutOfMemoryError:
        return None
    return memory.data_ptr(), memory


def result_of(
    memory: torch.Tensor | None, shape: Sequence[int], dtype: torch.dtype, index: int
) -> torch.Tensor:
    """**Local.** Return the tensor that lies in ``memory`` of the engine, for the current stream.

    Args:
        memory: As ``_engine.Engine.take_result`` gives it; None: the tensor is empty.
        shape: Shape of the tensor.
        dtype: Its type.
        index: The GPU.
    """
    device = f"cuda:{index}"
    if memory is None:
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    memory.record_stream(torch.cuda.current_stream(index))
    result = torch.empty(0, dtype=dtype, device=device)
    strides = torch.empty(tuple(shape), dtype=dtype, device="meta").stride()
    return result.set_(memory.untyped_storage(), 0, tuple(shape), strides)


def _external(stream: int, index: int) -> torch.cuda.ExternalStream:
    return torch.cuda.ExternalStream(stream, device=index)  # type: ignore[no-untyped-call]


def use_for_zeros(engine: _engine.Engine, index: int) -> None:
    """**Local.** Before a join: this rank may have to contribute zeros on a GPU.

    Args:
        engine: The one that joins.
        index: GPU that the script names; -1: the current one, if it uses any.
    """
    if engine.has_device or not torch.cuda.is_available():
        return
    if index >= 0 or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        use(engine, index if index >= 0 else torch.cuda.current_device())


def keep_until_done(engine: _engine.Engine, index: int, kept: Any) -> None:
    """**Local.** Let torch's allocator reuse memory only after what the engine does with it now.

    Needed where another stream waits for the operation than the one that gave the tensors: the
    latter does not know when the engine is done.

    Args:
        engine: Whose stream it is.
        index: The GPU.
        kept: Tensors, None, and sequences of those.
    """
    stream = _external(engine.device_stream, index)
    for each in kept:
        if isinstance(each, torch.Tensor):
            if each.is_cuda:
                each.record_stream(stream)
        elif each is not None:
            keep_until_done(engine, index, each)


def _public_current_stream(index: int) -> int:
    return int(torch.cuda.current_stream(index).cuda_stream)


current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", _public_current_stream)
"""**Local.** Return the handle of the current stream of a GPU; torch's own short way if it has it.

``torch.cuda.current_stream`` makes an object, which costs a microsecond per tensor.
"""
