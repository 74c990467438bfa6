"""Broadcasts of a whole state: parameters, an optimizer, any object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from horovod.common import basics
from horovod.common.objects import allgather_object, broadcast_object
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch.operations import broadcast_async_, synchronize

__all__ = [
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
]


def broadcast_parameters(
    params: Mapping[str, Any] | Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> None:
    """**Collective.** Overwrite ``params`` by root's, in place; usually ``model.state_dict()``.

    Args:
        params: A dictionary {name: tensor}, or a list of tensors or of (name, tensor); entries
            that are no tensors are left alone.
        root_rank: Global rank of the sender.
        process_set: Only the global one in this version.

    Raises:
        ValueError: ``params`` is something else, e.g. the generator ``model.parameters()``.
    """
    if isinstance(params, Mapping):
        pairs: list[tuple[str | None, Any]] = sorted(params.items())
    elif isinstance(params, list):
        pairs = [entry if isinstance(entry, tuple) else (None, entry) for entry in params]
    else:
        raise ValueError(
            f"broadcast_parameters: expected a dictionary or a list, got {type(params).__name__}; "
            "pass model.state_dict() or list(model.named_parameters())"
        )
    tensors = [(name, value) for name, value in pairs if isinstance(value, torch.Tensor)]
    _broadcast_tensors(tensors, root_rank, process_set)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """**Collective.** Give ``optimizer`` root's state and options, also where it has none yet.

    Where root's has no state yet, parameters without a gradient get zeros, as in Horovod; the state
    is left to the first step: one on zeros would already count and decay the weights.

    Args:
        optimizer: Plain or distributed, with the same parameter groups on all ranks.
        root_rank: Global rank of the sender.
        model: Accepted for compatibility; not needed.
        process_set: Its members take part; root is one of them.

    Raises:
        ValueError: An LBFGS optimizer (its state belongs to no parameter), or the ranks' parameter
            groups differ in number or length; the same error on every rank.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("broadcast_optimizer_state: cannot broadcast torch.optim.LBFGS state")
    _check_groups(optimizer, process_set)
    own = _optimizer_content(optimizer)
    outline = broadcast_object(_outline(own), root_rank, "optimizer_state", process_set)
    tensors: list[tuple[str | None, torch.Tensor]] = []
    content = _fill(outline, own, "optimizer_state", tensors)
    _broadcast_tensors(tensors, root_rank, process_set)
    if basics.rank() != root_rank:
        _set_optimizer_content(optimizer, content)
    if not content["states"]:
        _make_gradients(optimizer)


def _check_groups(optimizer: torch.optim.Optimizer, process_set: ProcessSet) -> None:
    """**Collective.** Compare the lengths of the ranks' parameter groups; ValueError on all."""
    lengths = [len(group["params"]) for group in optimizer.param_groups]
    by_rank = allgather_object(lengths, "optimizer_groups", process_set)
    different = [i for i, other in enumerate(by_rank) if other != by_rank[0]]
    if different:
        ranks = process_set.ranks or range(len(by_rank))
        raise ValueError(
            "broadcast_optimizer_state: expected the same parameter groups on all ranks, got "
            f"{len(by_rank[0])} groups of {by_rank[0]} parameters on rank {ranks[0]} and "
            f"{len(by_rank[different[0]])} of {by_rank[different[0]]} on rank {ranks[different[0]]}"
        )


def _make_gradients(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)


class _Outline:
    """Stands for a tensor in the state that root sends first."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype
        self.device = tensor.device.type


def _optimizer_content(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return groups without parameters and the states by the parameters' position."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    position = {p: i for i, p in enumerate(parameters)}
    groups = [
        {key: value for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]
    states = {position.get(key, key): value for key, value in optimizer.state.items()}
    return {"groups": groups, "states": states}


def _set_optimizer_content(optimizer: torch.optim.Optimizer, content: dict[str, Any]) -> None:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for group, options in zip(optimizer.param_groups, content["groups"], strict=True):
        group.update(options)
    optimizer.state.clear()
    for key, value in content["states"].items():
        optimizer.state[parameters[key] if isinstance(key, int) else key] = value


def _outline(value: Any) -> Any:
    """Return ``value`` with every tensor replaced by its outline."""
    if isinstance(value, torch.Tensor):
        return _Outline(value)
    if isinstance(value, dict):
        return {key: _outline(entry) for key, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_outline(entry) for entry in value)
    return value


def _fill(outline: Any, own: Any, name: str, tensors: list[tuple[str | None, torch.Tensor]]) -> Any:
    """Return ``outline`` with tensors again: our own where they fit, else new ones.

    The tensors are appended to ``tensors`` in an order that is the same on all ranks.
    """
    if isinstance(outline, _Outline):
        tensor = own if isinstance(own, torch.Tensor) else torch.empty(0)
        if tuple(tensor.shape) != outline.shape or tensor.dtype != outline.dtype:
            tensor = torch.empty(outline.shape, dtype=outline.dtype, device=outline.device)
        tensors.append((name, tensor))
        return tensor
    if isinstance(outline, dict):
        mine = own if isinstance(own, dict) else {}
        return {
            key: _fill(entry, mine.get(key), f"{name}.{key}", tensors)
            for key, entry in outline.items()
        }
    if type(outline) in (list, tuple):
        parts = own if isinstance(own, list | tuple) else ()
        padded = (*parts, *([None] * len(outline)))
        filled = (
            _fill(e, o, f"{name}.{i}", tensors)
            for i, (e, o) in enumerate(zip(outline, padded, strict=False))
        )
        return type(outline)(filled)
    return outline


def _broadcast_tensors(
    tensors: Sequence[tuple[str | None, torch.Tensor]], root_rank: int, process_set: ProcessSet
) -> None:
    """**Collective.** Overwrite all ``tensors`` by root's; non-contiguous ones by way of a copy."""
    started = []
    for name, tensor in tensors:
        dense = tensor.detach().contiguous()
        started.append((tensor, dense, broadcast_async_(dense, root_rank, name, process_set)))
    for tensor, dense, handle in started:
        synchronize(handle)
        if dense.data_ptr() != tensor.data_ptr():
            with torch.no_grad():
                tensor.copy_(dense)
