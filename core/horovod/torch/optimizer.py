"""DistributedOptimizer: gradients are averaged over the ranks while the backward pass still runs.

A hook on every parameter starts an in-place allreduce as soon as its gradient is complete;
``synchronize()`` (called by ``step()``) waits for all of them. With ``backward_passes_per_step`` =
k the gradients of k passes are summed locally and communicated in the k-th.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from horovod import autotuning, basics
from horovod.common.process_sets import ProcessSet, global_process_set, require_global
from horovod.torch import handles
from horovod.torch.compression import Compression, Compressor
from horovod.torch.operations import Average, allreduce_async_, resolve_op, synchronize

Closure = Callable[[], Any]

_owners: Any = WeakTensorKeyDictionary()
"""{parameter: number of the newest optimizer that wraps it}: an older one no longer reduces it."""


@dataclass(frozen=True)
class _Options:
    compression: type[Compressor]
    op: int
    prescale_factor: float
    postscale_factor: float
    process_set: ProcessSet


@dataclass
class _Reduction:
    """One gradient on its way.

    Attributes:
        handle: None while it is still being accumulated locally.
        context: What the compression needs to decompress it.
    """

    handle: int | None = None
    context: object = None


class _Distributed(torch.optim.Optimizer):
    """What a wrapped optimizer does beside its own class; see ``DistributedOptimizer``."""

    _number: int
    _options: _Options
    _parameter_names: dict[torch.Tensor, str]
    _passes: int
    _passes_left: dict[torch.Tensor, int]
    _reductions: dict[torch.Tensor, _Reduction]
    _synchronized: bool
    _should_synchronize: bool

    def synchronize(self) -> None:
        """**Collective.** Wait until all gradients are reduced; ends a training step.

        Also reduces gradients whose hook did not run (as zeros where there are none), so that ranks
        may use different parameters.

        Raises:
            HorovodInternalError: A reduction failed.
        """
        self._finish_reductions()
        self._synchronized = True
        autotuning.optimizer_synchronized(self._number)

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """**Local.** Within this context ``step()`` does not synchronise (done already)."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Closure | None = None, **arguments: Any) -> Any:
        """**Collective.** Synchronise (unless skipped) and update the parameters.

        Args:
            closure: Recomputes the loss; its gradients are reduced, too.
            **arguments: What the wrapped class's own ``step`` takes.
        """
        if self._should_synchronize:
            if self._synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(): the gradients are reduced a second time. Use "
                    "'with optimizer.skip_synchronize(): optimizer.step()'",
                    stacklevel=2,
                )
            if closure is None:
                self.synchronize()
            else:
                self._finish_reductions(only_started=True)
                closure = self._synchronizing(closure)
        result = super().step(*(() if closure is None else (closure,)), **arguments)
        self._synchronized = False
        return result

    def zero_grad(self, set_to_none: bool = True) -> None:
        """**Local.** Reset the gradients, with torch's own signature.

        Raises:
            AssertionError: Gradients are on their way.
        """
        if self._reductions:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before "
                "optimizer.step() or optimizer.synchronize(): the gradients are on their way"
            )
        super().zero_grad(set_to_none)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """**Local**, every rank alike. Communicate gradients in every ``passes``-th backward pass.

        Raises:
            ValueError: ``passes`` is not a positive whole number.
        """
        self._passes = _checked_passes(passes)
        self._passes_left = dict.fromkeys(self._passes_left, passes)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """**Local.** Load a state; gradients on their way are forgotten."""
        for reduction in self._reductions.values():
            if reduction.handle is not None:
                handles.drop(reduction.handle)
        self._reductions = {}
        self._passes_left = dict.fromkeys(self._passes_left, self._passes)
        self._synchronized = False
        super().load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """**Local**, every rank alike. Add parameters, whose gradients are reduced, too."""
        super().add_param_group(param_group)
        number = len(self.param_groups) - 1
        for i, parameter in enumerate(self.param_groups[-1]["params"]):
            self._parameter_names.setdefault(parameter, f"allreduce.noname.{number}.{i}")
            self._watch(parameter)

    def _watch(self, parameter: torch.Tensor) -> None:
        """Start a reduction whenever the gradient of ``parameter`` is complete."""
        if basics.size() == 1 or not parameter.requires_grad or parameter in self._passes_left:
            return
        self._passes_left[parameter] = self._passes
        _owners[parameter] = self._number
        reference = weakref.ref(self)

        def gradient_ready(ready: torch.Tensor) -> None:
            optimizer = reference()
            if optimizer is not None and _owners.get(ready) == optimizer._number:
                optimizer._on_gradient(ready)

        parameter.register_post_accumulate_grad_hook(gradient_ready)  # type: ignore[no-untyped-call]

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        if not self._reductions:
            basics.engine().backward(True)
        reduction = self._reductions.setdefault(parameter, _Reduction())
        if reduction.handle is not None:
            raise AssertionError(
                f"gradients of {self._parameter_names[parameter]!r} were computed more than "
                f"backward_passes_per_step ({self._passes}) times before optimizer.step() or "
                "optimizer.synchronize(); increase backward_passes_per_step to accumulate locally"
            )
        self._passes_left[parameter] -= 1
        if self._passes_left[parameter] == 0:
            self._start(parameter, reduction)

    def _start(self, parameter: torch.Tensor, reduction: _Reduction) -> None:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if parameter.grad.is_sparse:
            raise NotImplementedError(
                f"the gradient of {self._parameter_names[parameter]!r} is sparse: not supported in "
                "this version; use dense gradients (sparse=False)"
            )
        options = self._options
        travelling, reduction.context = options.compression.compress(parameter.grad)
        reduction.handle = allreduce_async_(
            travelling.contiguous(),
            name=self._parameter_names[parameter],
            op=options.op,
            prescale_factor=options.prescale_factor,
            postscale_factor=options.postscale_factor,
            process_set=options.process_set,
        )

    def _finish_reductions(self, only_started: bool = False) -> None:
        """**Collective.** Start what is missing, wait for all, put the gradients in place."""
        basics.engine().backward(False)
        for parameter in () if only_started else self._passes_left:
            reduction = self._reductions.setdefault(parameter, _Reduction())
            if reduction.handle is None:
                self._start(parameter, reduction)
        started, self._reductions = self._reductions, {}
        self._passes_left = dict.fromkeys(self._passes_left, self._passes)
        for parameter, reduction in started.items():
            if reduction.handle is not None:
                self._put_in_place(parameter, synchronize(reduction.handle), reduction.context)

    def _put_in_place(
        self, parameter: torch.Tensor, reduced: torch.Tensor, context: object
    ) -> None:
        gradient = self._options.compression.decompress(reduced, context)
        if parameter.grad is None:
            parameter.grad = gradient
        elif parameter.grad.data_ptr() != gradient.data_ptr():
            with torch.no_grad():
                parameter.grad.copy_(gradient)

    def _synchronizing(self, closure: Closure) -> Closure:
        def synchronized_closure() -> Any:
            loss = closure()
            with torch.no_grad():
                self.synchronize()
            return loss

        return synchronized_closure


# torch counts and hooks a step once per class that is not marked; the wrapped class's own step,
# which ours calls, is the marked one.
_Distributed.step.hooked = True  # type: ignore[attr-defined]


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
    """Return ``optimizer`` with gradients reduced over all ranks. **Local**, every rank alike.

    The result is an instance of a subclass of the optimizer's own class and shares its parameter
    groups and state.

    Args:
        optimizer: Any torch optimizer.
        named_parameters: (name, parameter) of all its parameters; names must be the same on all
            ranks.
        compression: How gradients travel.
        backward_passes_per_step: Passes that are accumulated (summed) locally per communication.
        op: Average, Sum, Min, Max or Product.
        gradient_predivide_factor: With Average: divide by it before the sum, by size / it after.
        num_groups: Not supported in this version.
        groups: Not supported in this version.
        sparse_as_dense: Not supported in this version.
        process_set: Only the global one in this version.

    Raises:
        ValueError: Wrong names, passes or factor.
        NotImplementedError: An option that this version lacks.
    """
    _refuse_what_is_missing(num_groups, groups, sparse_as_dense, process_set)
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor: supported only with op=Average")
    options = _Options(
        compression=compression,
        op=resolve_op(op, None),
        prescale_factor=1.0 / gradient_predivide_factor,
        postscale_factor=gradient_predivide_factor,
        process_set=process_set,
    )
    names = _parameter_names(optimizer, named_parameters)
    wrapped_class = type(
        type(optimizer).__name__, (_Distributed, type(optimizer)), {"__module__": __name__}
    )
    wrapped: _Distributed = object.__new__(wrapped_class)
    # "step" is there when a scheduler patched the instance: it would bypass ours.
    wrapped.__dict__.update({k: v for k, v in vars(optimizer).items() if k != "step"})
    wrapped._number = autotuning.register_optimizer(_owner_of(names))
    wrapped._options = options
    wrapped._parameter_names = names
    wrapped._passes = _checked_passes(backward_passes_per_step)
    wrapped._passes_left, wrapped._reductions = {}, {}
    wrapped._synchronized, wrapped._should_synchronize = False, True
    for parameter in names:
        wrapped._watch(parameter)
    return wrapped


def _owner_of(parameters: Iterable[torch.Tensor]) -> int | None:
    """Return the number of an optimizer that wraps some of ``parameters`` already."""
    return next((_owners[parameter] for parameter in parameters if parameter in _owners), None)


def _parameter_names(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> dict[torch.Tensor, str]:
    """Return {parameter: name} in the order of the parameter groups."""
    in_groups = {
        parameter: f"allreduce.noname.{g}.{i}"
        for g, group in enumerate(optimizer.param_groups)
        for i, parameter in enumerate(group["params"])
    }
    pairs: Sequence[Any] = list(named_parameters or ())
    if not pairs:
        return in_groups
    if not all(isinstance(pair, tuple) for pair in pairs):
        raise ValueError(
            "named_parameters: expected a sequence of (name, parameter) tuples, usually "
            "model.named_parameters()"
        )
    counts: dict[str, int] = {}
    for name, _ in pairs:
        counts[name] = counts.get(name, 0) + 1
    duplicates = sorted(name for name, count in counts.items() if count > 1)
    if duplicates:
        raise ValueError(
            f"named_parameters: parameter names must be unique; found {', '.join(duplicates)} "
            "more than once"
        )
    given = {parameter: name for name, parameter in pairs}
    unnamed = [default for parameter, default in in_groups.items() if parameter not in given]
    if unnamed:
        raise ValueError(
            f"named_parameters: {len(unnamed)} of the optimizer's {len(in_groups)} parameters are "
            "not named; pass the names of all of them, or none"
        )
    return {parameter: given[parameter] for parameter in in_groups}


def _checked_passes(passes: int) -> int:
    if passes < 1:
        raise ValueError(f"backward_passes_per_step: expected a whole number > 0, got {passes}")
    return passes


def _refuse_what_is_missing(
    num_groups: int, groups: object, sparse_as_dense: bool, process_set: ProcessSet
) -> None:
    if num_groups or groups:
        raise NotImplementedError("groups and num_groups are not supported in this version")
    if sparse_as_dense:
        raise NotImplementedError("sparse_as_dense is not supported in this version")
    require_global(process_set)
