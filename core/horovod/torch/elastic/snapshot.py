"""Copies of nested tensors in host memory, made again and again into the same memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable
from typing import Any

import torch


class Snapshot:
    """The newest copy of a value: tensors, in dictionaries, lists and tuples, and anything else.

    A tensor is copied once, with nothing in between, also where several names share it; memory is
    taken the first time, and for tensors of a GPU it is pinned. Anything else is deep-copied.
    """

    def __init__(self) -> None:
        self._content: Any = None

    def take(self, value: Any) -> None:
        """**Local.** Copy ``value``, whose tensors' operations on a GPU are complete."""
        copying = _Copying()
        self._content = copying.copy(value, self._content)
        copying.wait()

    def view(self) -> Any:
        """**Local.** Return the copy itself, for somebody who only reads it before the next."""
        return self._content

    def fresh(self) -> Any:
        """**Local.** Return a copy of the copy, for somebody who keeps it."""
        return _Copying().copy(self._content, None)

    def packed(self) -> Any:
        """**Local.** Return the copy with every tensor in bytes; ``unpacked`` is the way back."""
        return _mapped(self._content, _pack, {})


def unpacked(content: Any) -> Any:
    """**Local.** Return what ``Snapshot.packed`` was made of."""
    return _mapped(content, _unpack, {})


class Packed:
    """A tensor as bytes.

    Args:
        tensor: In host memory.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._dtype = str(tensor.dtype).removeprefix("torch.")
        self._shape = tuple(tensor.shape)
        self._data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()

    def tensor(self) -> torch.Tensor:
        """**Local.** Return the tensor."""
        dtype = getattr(torch, self._dtype)
        if not self._data.size:
            return torch.empty(self._shape, dtype=dtype)
        return torch.from_numpy(self._data).view(dtype).reshape(self._shape)


class _Copying:
    """One copy of a whole value."""

    def __init__(self) -> None:
        self._copies: dict[Hashable, torch.Tensor] = {}
        self._used: set[int] = set()
        self._devices: set[torch.device] = set()

    def copy(self, value: Any, earlier: Any) -> Any:
        """Return a copy, in the memory of ``earlier`` (a copy of something like it) if it fits."""
        if isinstance(value, torch.Tensor):
            return self._copy_tensor(value.detach(), earlier)
        if isinstance(value, dict):
            before = earlier if isinstance(earlier, dict) else {}
            made = copy.copy(value)  # also its attributes: a module's state_dict has some
            for key, entry in value.items():
                made[key] = self.copy(entry, before.get(key))
            return made
        if type(value) in (list, tuple):
            parts = earlier if isinstance(earlier, list | tuple) else ()
            padded = (*parts, *([None] * len(value)))
            pairs = zip(value, padded, strict=False)
            return type(value)(self.copy(entry, old) for entry, old in pairs)
        return copy.deepcopy(value)

    def wait(self) -> None:
        """Return when all copies are complete."""
        for device in self._devices:
            torch.cuda.current_stream(device).synchronize()

    def _copy_tensor(self, tensor: torch.Tensor, earlier: Any) -> torch.Tensor:
        if tensor.layout is not torch.strided or tensor.is_quantized:
            return tensor.cpu().clone()
        shape = tuple(tensor.shape)
        key = (tensor.device, tensor.data_ptr(), shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and key in self._copies:
            return self._copies[key]
        made = earlier if self._fits(tensor, earlier) else _like(tensor)
        made.copy_(tensor, non_blocking=tensor.is_cuda)
        if tensor.is_cuda:
            self._devices.add(tensor.device)
        self._copies[key] = made
        self._used.add(id(made))
        return made

    def _fits(self, tensor: torch.Tensor, earlier: Any) -> bool:
        return (
            isinstance(earlier, torch.Tensor)
            and id(earlier) not in self._used
            and earlier.layout is torch.strided
            and earlier.dtype == tensor.dtype
            and earlier.shape == tensor.shape
        )


def _mapped(value: Any, change: Callable[[Any], Any], known: dict[int, Any]) -> Any:
    """Return ``value`` with everything in it changed, what is shared once."""
    if isinstance(value, dict):
        made = copy.copy(value)
        for key, entry in value.items():
            made[key] = _mapped(entry, change, known)
        return made
    if type(value) in (list, tuple):
        return type(value)(_mapped(entry, change, known) for entry in value)
    if id(value) not in known:
        known[id(value)] = change(value)
    return known[id(value)]


def _pack(value: Any) -> Any:
    is_plain = isinstance(value, torch.Tensor) and value.layout is torch.strided
    return Packed(value) if is_plain and not value.is_quantized else value


def _unpack(value: Any) -> Any:
    return value.tensor() if isinstance(value, Packed) else value


def _like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
