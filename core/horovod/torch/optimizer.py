"""DistributedOptimizer: gradients are averaged over the ranks while the backward pass still runs.

A hook on every parameter starts an in-place allreduce as soon as its gradient is complete;
``synchronize()`` (called by ``step()``) waits for all of them. With ``backward_passes_per_step`` =
k the gradients of k passes are summed locally and communicated in the k-th.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch

from horovod.common import basics, rounds
from horovod.common.process_set import ProcessSet, global_process_set
from horovod.torch.compression import Compression, Compressor
from horovod.torch.operations import Adasum, Average, Product
from horovod.torch.wrapped.adasum import AdasumDeltas
from horovod.torch.wrapped.distributed import DistributedGradients, Wrapped, checked_passes
from horovod.torch.wrapped.gradients import Options
from horovod.torch.wrapped.naming import (
    OperationNames,
    parameter_groups,
    parameter_names,
    replaced_optimizer,
)
from horovod.torch.wrapped.reducer import Reducer
from horovod.torch.wrapped.scaler import teach_scalers
from horovod.tuning import autotuning

__all__ = ["DistributedOptimizer"]

_DistributedOptimizer = DistributedGradients
_DistributedAdasumOptimizer = AdasumDeltas
"""Horovod's names of the classes, which libraries import to recognise a wrapped optimizer."""


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: object = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> torch.optim.Optimizer:
    """Return ``optimizer`` with gradients reduced over the ranks of ``process_set``.

    The result is an instance of a subclass of the optimizer's own class and shares its parameter
    groups and state. **Local**, every rank alike; **Collective** where ``groups`` is a number.

    Args:
        optimizer: Any torch optimizer.
        named_parameters: (name, parameter) of all its parameters; names must be the same on all
            ranks. Two optimizers may use the same names.
        compression: How dense gradients travel.
        backward_passes_per_step: Passes that are accumulated (summed) locally per communication.
        op: Average, Sum, Min, Max, Product, or Adasum: then the ranks' steps are combined, not
            their gradients.
        gradient_predivide_factor: With Average: divide by it before the sum, by size / it after.
        num_groups: Older name of ``groups`` as a number.
        groups: Gradients that are reduced together, when the last one of a group is complete: a
            number of groups of nearly equal length, or a list of lists of parameters (the others
            are reduced one by one).
        sparse_as_dense: Reduce sparse gradients as dense ones; else their rows are gathered.
        process_set: Ranks that train together; on other ranks ``step()`` is a local one.

    Raises:
        ValueError: Wrong names, passes, factor, groups or process set.
    """
    if isinstance(optimizer, Wrapped):
        raise ValueError(
            "DistributedOptimizer: the optimizer is wrapped already; pass the plain one"
        )
    if process_set.process_set_id is None:
        raise ValueError(f"{process_set}: not known yet; pass it to hvd.add_process_set first")
    if num_groups:
        warnings.warn("num_groups is deprecated: use groups", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    options = _options(compression, op, gradient_predivide_factor, sparse_as_dense, process_set)
    names = parameter_names(optimizer, named_parameters)
    passes = checked_passes(backward_passes_per_step)
    is_alone = process_set.size() == 1 or basics.size() == 1
    communicates = bool(process_set.included()) and (rounds.is_elastic() or not is_alone)
    lists = parameter_groups(groups, names, process_set if communicates else None)

    if communicates:
        basics.job().advise_on_cache(len(names))
    number = autotuning.register_optimizer(replaced_optimizer(names))
    operation_names = OperationNames(number, names, process_set.process_set_id)
    attributes: dict[str, Any] = {
        "_backward_passes_per_step": passes,
        "_gradient_predivide_factor": gradient_predivide_factor,
        "_options": options,
        "_number": number,
        "_operation_names": operation_names,
        "_original": optimizer,
        "_parameter_names": names,
    }
    if options.op == Adasum:
        attributes |= {"_communicates": communicates}
        return _wrap(optimizer, AdasumDeltas, attributes)
    teach_scalers()
    reducer = Reducer(passes, options)
    for parameter, name in names.items() if communicates else ():
        reducer.watch(parameter, operation_names(name))
    reducer.group(lists)
    attributes |= {"_reducer": reducer, "_communicates": communicates}
    attributes |= {"_should_synchronize": True, "_synchronized": False}
    attributes |= {"_reduced_for_scaler": False}
    return _wrap(optimizer, DistributedGradients, attributes)


def _wrap(
    optimizer: torch.optim.Optimizer, added: type[Wrapped], attributes: dict[str, Any]
) -> Wrapped:
    """Return an instance of ``added`` and the optimizer's class with the optimizer's attributes.

    The optimizer's own class is the first base, as libraries expect (Lightning takes it from there
    and makes a class of its own); what ``added`` defines comes before it all the same.
    """
    name, own = type(optimizer).__name__, type(optimizer)
    members = {key: value for key, value in vars(Wrapped).items() if not key.startswith("__")}
    members |= {key: value for key, value in vars(added).items() if not key.startswith("__")}
    wrapped_class = type(name, (own, added), {**members, "_own_class": own, "__module__": __name__})
    wrapped: Wrapped = object.__new__(wrapped_class)
    # "step" is there when a scheduler patched the instance: it would bypass ours.
    inherited = {key: value for key, value in vars(optimizer).items() if key != "step"}
    vars(wrapped).update(inherited | attributes)
    return wrapped


def _options(
    compression: type[Compressor],
    op: int,
    factor: float,
    sparse_as_dense: bool,
    process_set: ProcessSet,
) -> Options:
    if op not in range(Average, Product + 1):
        raise ValueError(f"op: expected Average, Sum, Adasum, Min, Max or Product, got {op!r}")
    if factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor: supported only with op=Average")
    if not factor > 0:
        raise ValueError(f"gradient_predivide_factor: expected a number > 0, got {factor}")
    return Options(
        compression=compression,
        op=op,
        prescale_factor=1.0 / factor,
        postscale_factor=factor,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
    )
