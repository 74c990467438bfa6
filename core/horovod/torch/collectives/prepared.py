"""What does not change while an operation comes back, step by step, is prepared once.

A kind is what operations have in common that differ only in name, memory and shape. What is
prepared is one named operation on tensors like the one that it was made for.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch

from horovod import _engine
from horovod.common.operation import How, Kept, make_kind
from horovod.torch import cuda

DTYPES = {
    getattr(torch, name): name
    for name in (
        *("uint8", "int8", "int16", "int32", "int64"),
        *("float16", "bfloat16", "float32", "float64", "bool"),
    )
}
"""{type: the engine's name for it}"""

_kinds: Kept[tuple[Hashable, ...], _engine.Kind] = Kept()


def expect_tensor(value: object) -> None:
    """**Local.** Raise TypeError where ``value`` is no tensor."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(
            f"expected a tensor, got {value!r:.80} ({type(value).__name__}); torch.tensor makes "
            "one, hvd.broadcast_object and hvd.allgather_object send any object"
        )


def check(tensor: torch.Tensor) -> str:
    """**Local.** Return the engine's name of the type of ``tensor``.

    Raises:
        TypeError: It is no tensor.
        ValueError: The engine cannot communicate the tensor.
    """
    expect_tensor(tensor)
    dtype = DTYPES.get(tensor.dtype)
    if (
        dtype is None
        or not (tensor.is_cpu or tensor.is_cuda)
        or tensor.layout is not torch.strided
        or not tensor.is_contiguous()
        or tensor.is_neg()
    ):
        raise ValueError(_why_unsuitable(tensor))
    return dtype


def kind_of(engine: _engine.Engine, how: How, number: int, tensor: torch.Tensor) -> _engine.Kind:
    """**Local.** Return the engine's description of operations like this one on ``tensor``.

    Args:
        engine: Learns of the GPU when this is the first tensor of one.
        how: What is to be done.
        number: The engine's number of the process set.
        tensor: Its type and place matter.

    Raises:
        ValueError: Unsuitable tensor, or the engine uses another GPU.
        RuntimeError: Something is missing, see ``cuda.use``.
    """
    dtype, device = check(tensor), tensor.get_device()
    what = how.operation, how.op, how.prescale, how.postscale, how.root_rank
    key = (*what, how.wire_type, how.may_compress, number, how.name is None, dtype, device)
    known = _kinds.get(key)
    if known is not None:
        return known
    if device >= 0:
        cuda.use(engine, device)
    made = make_kind(how, number, dtype, on_device=device >= 0)
    _kinds.keep(key, made)
    return made


def _make_reader() -> _engine.TensorReader | None:
    api = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)  # from torch 2.10 on
    if api is None:
        return None
    try:
        return _engine.TensorReader(api, [torch.Tensor, torch.nn.Parameter])
    except ValueError:
        return None


_reader = _make_reader()
"""Reads tensors ten times as fast as Python can; None: torch is too old, or too new."""


class Prepared:
    """One operation that comes back, prepared for tensors like ``tensor``.

    Attributes:
        engine: The engine that it is prepared for.
        operation: The engine's description.
        set_number: The engine's number of its process set.
        device: GPU of the tensors; -1: CPU.
        runner: Starts it or does it; None: ``prepare_to_run`` was not called, or was in vain.
    """

    __slots__ = ("_dtype", "_shape", "device", "engine", "operation", "runner", "set_number")

    def __init__(
        self,
        engine: _engine.Engine,
        kind: _engine.Kind,
        name: str,
        set_number: int,
        tensor: torch.Tensor,
    ) -> None:
        self.engine = engine
        self.operation = _engine.Prepared(kind, name, tensor.shape)
        self.set_number = set_number
        self.device = tensor.get_device()
        self.runner: _engine.Runner | None = None
        self._dtype, self._shape = tensor.dtype, tensor.shape

    def prepare_to_run(self) -> None:
        """**Local.** Make ``runner``, where that is possible."""
        if _reader is not None:
            self.runner = _engine.Runner(self.engine, _reader, self.operation, self.device)

    def start(self, tensor: torch.Tensor, output: torch.Tensor | None, stream: int) -> int | None:
        """**Collective.** Start it; return the engine's handle. None: ``tensor`` is not like that.

        Raises:
            InvalidRequest: The engine refuses it.
            EngineError: A rank died or the engine was shut down.
        """
        if self.runner is not None:
            handle = self.runner.start(tensor, output, stream)
            if handle is not None:
                return handle
        place = self.place(tensor)
        if place is None:
            return None
        other = place if output is tensor else 0 if output is None else output.data_ptr()
        return self.engine.start_prepared(self.operation, place, other, stream)

    def place(self, tensor: torch.Tensor) -> int | None:
        """**Local.** Return the address of ``tensor``; None: it is not like that one."""
        if _reader is not None:
            found = _reader.find(self.operation, tensor, self.device)
            if found is not None:
                return found
        return tensor.data_ptr() if self.fits(tensor) else None

    def fits(self, tensor: torch.Tensor) -> bool:
        """**Local.** Return whether ``tensor`` is like the one that it was made for."""
        return (
            isinstance(tensor, torch.Tensor)
            and tensor.dtype is self._dtype
            and tensor.shape == self._shape
            and (tensor.is_cpu if self.device < 0 else tensor.get_device() == self.device)
            and tensor.layout is torch.strided
            and tensor.is_contiguous()
            and not tensor.is_neg()
        )


class PreparedGroup:
    """Several operations that are started together, on one device.

    Args:
        engine: The engine that they are prepared for.
        set_number: The engine's number of their process set.
        members: Each of them.
        device: GPU of the tensors; -1: CPU.
        as_they_lie: Some of them may have been made for tensors as they lie (see ``layout``);
            ``places`` takes the tensors themselves.

    Attributes:
        engine, set_number, device: As given.
        operations: The engine's descriptions, in order.
    """

    __slots__ = ("_as_they_lie", "_members", "device", "engine", "operations", "set_number")

    def __init__(
        self,
        engine: _engine.Engine,
        set_number: int,
        members: Sequence[Prepared],
        device: int,
        *,
        as_they_lie: bool = False,
    ) -> None:
        self.engine = engine
        self.set_number = set_number
        self.device = device
        self.operations = _engine.PreparedAll([member.operation for member in members])
        self._members = members
        self._as_they_lie = as_they_lie

    def places(self, tensors: Sequence[torch.Tensor]) -> _engine.Places | None:
        """**Local.** Return where ``tensors`` lie; None: they are not like those."""
        if _reader is not None:
            found = _reader.find_all(
                self.operations, list(tensors), self.device, as_they_lie=self._as_they_lie
            )
            if found is not None:
                return found
        if len(tensors) != len(self._members):
            return None
        if not all(member.fits(t) for member, t in zip(self._members, tensors, strict=True)):
            return None
        return places_of(tensors)


def places_of(tensors: Sequence[torch.Tensor]) -> _engine.Places:
    """**Local.** Return where ``tensors`` lie, whatever they are like."""
    return _engine.Places([tensor.data_ptr() for tensor in tensors])


def _why_unsuitable(tensor: torch.Tensor) -> str:
    if tensor.dtype not in DTYPES:
        names = ", ".join(DTYPES.values())
        return f"tensor of type {tensor.dtype}: expected one of {names}"
    if not (tensor.is_cpu or tensor.is_cuda):
        return f"tensor on {tensor.device}: expected one on the CPU or a CUDA GPU; use tensor.cpu()"
    if tensor.is_neg():
        return "tensor whose memory holds the opposite of its values: use tensor.resolve_neg()"
    return (
        "Tensor is required to be contiguous (and dense), got one of shape "
        f"{list(tensor.shape)}, layout {tensor.layout}. Use tensor.contiguous()"
    )
