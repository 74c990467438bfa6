"""What does not change while an operation comes back, step by step: prepared once, kept by name.

A kind is what operations have in common that differ only in name, memory and shape; a plan is one
named operation on tensors like the one that it was made for.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch

from horovod import _engine
from horovod.torch import cuda

DTYPES = {
    getattr(torch, name): name
    for name in (
        *("uint8", "int8", "int16", "int32", "int64"),
        *("float16", "bfloat16", "float32", "float64", "bool"),
    )
}
"""{type: the engine's name for it}"""

_kinds: dict[Hashable, _engine.Kind] = {}
_plans: dict[Hashable, Plan | GroupPlan] = {}
_MOST = 10_000  # kinds, and plans: names or factors that change from call to call


def check(tensor: torch.Tensor) -> str:
    """**Local.** Return the engine's name of the type of ``tensor``.

    Raises:
        ValueError: The engine cannot communicate the tensor.
    """
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


def kind(
    engine: _engine.Engine,
    operation: str,
    tensor: torch.Tensor,
    process_set: int,
    named: bool,
    how: dict[str, Any],
) -> _engine.Kind:
    """**Local.** Return the engine's description of operations like this one on ``tensor``.

    Args:
        engine: Learns of the GPU when this is the first tensor of one.
        operation: As in the engine.
        tensor: Its type and place matter.
        process_set: The engine's number.
        named: Whether the script has named the operation.
        how: Further arguments of ``_engine.Kind``.

    Raises:
        ValueError: Unsuitable tensor, or the engine uses another GPU.
        RuntimeError: Something is missing, see ``cuda.use``.
    """
    dtype, device = check(tensor), tensor.get_device()
    key = (operation, dtype, process_set, named, device, *how.values())
    known = _kinds.get(key)
    if known is not None:
        return known
    if device >= 0:
        cuda.use(engine, device)
    made = _engine.Kind(
        operation=operation,
        dtype=dtype,
        process_set=process_set,
        named=named,
        on_device=device >= 0,
        **how,
    )
    _keep(_kinds, key, made)
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


class Plan:
    """One operation, prepared for tensors like ``tensor``.

    Attributes:
        prepared: The engine's description.
        device: GPU of the tensors; -1: CPU.
        runner: Starts it or does it; None: ``prepare_to_run`` was not called, or was in vain.
        engine: Of the runner.
    """

    __slots__ = ("_dtype", "_shape", "device", "engine", "prepared", "runner")

    def __init__(self, kind: _engine.Kind, full_name: str, tensor: torch.Tensor) -> None:
        self.prepared = _engine.Prepared(kind, full_name, tensor.shape)
        self.device = tensor.get_device()
        self._dtype, self._shape = tensor.dtype, tensor.shape
        self.runner: _engine.Runner | None = None
        self.engine: _engine.Engine | None = None

    def prepare_to_run(self, engine: _engine.Engine) -> None:
        """**Local.** Make ``runner``, where that is possible."""
        if _reader is not None and self.engine is not engine:
            self.runner = _engine.Runner(engine, _reader, self.prepared, self.device)
            self.engine = engine

    def place(self, tensor: torch.Tensor) -> int | None:
        """**Local.** Return the address of ``tensor``; None: it is not like that one."""
        if _reader is not None:
            found = _reader.find(self.prepared, tensor, self.device)
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


class GroupPlan:
    """Several operations that are started together, on one device.

    Args:
        plans: Of each.
        device: GPU of the tensors; -1: CPU.
        as_they_lie: Some of the plans may have been made for tensors as they lie (see ``layout``);
            ``places`` takes the tensors themselves.

    Attributes:
        prepared: The engine's descriptions, in order.
        device: GPU of the tensors; -1: CPU.
    """

    __slots__ = ("_as_they_lie", "_plans", "device", "prepared")

    def __init__(self, plans: Sequence[Plan], device: int, *, as_they_lie: bool = False) -> None:
        self._plans = plans
        self._as_they_lie = as_they_lie
        self.device = device
        self.prepared = _engine.PreparedAll([plan.prepared for plan in plans])

    def places(self, tensors: Sequence[torch.Tensor]) -> _engine.Places | None:
        """**Local.** Return where ``tensors`` lie; None: they are not like those."""
        if _reader is not None:
            found = _reader.find_all(
                self.prepared, list(tensors), self.device, as_they_lie=self._as_they_lie
            )
            if found is not None:
                return found
        if len(tensors) != len(self._plans):
            return None
        if not all(plan.fits(t) for plan, t in zip(self._plans, tensors, strict=True)):
            return None
        return places_of(tensors)


def places_of(tensors: Sequence[torch.Tensor]) -> _engine.Places:
    """**Local.** Return where ``tensors`` lie, whatever they are like."""
    return _engine.Places([tensor.data_ptr() for tensor in tensors])


def known(key: Hashable) -> Any:
    """**Local.** Return the plan that was remembered by ``key``, or None."""
    return _plans.get(key)


def remember(key: Hashable, plan: Plan | GroupPlan) -> None:
    """**Local.** Keep ``plan`` until the engine ends, or too many are kept."""
    _keep(_plans, key, plan)


def forget() -> None:
    """**Local.** Forget what belongs to the engine, after ``shutdown``."""
    _kinds.clear()
    _plans.clear()


def _keep(kept: dict[Hashable, Any], key: Hashable, value: Any) -> None:
    if len(kept) >= _MOST:
        kept.clear()
    kept[key] = value


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
