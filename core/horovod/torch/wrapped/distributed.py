"""What a wrapped optimizer does beside its own class."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from horovod.common.process_set import ProcessSet
from horovod.torch.operations import Average, allreduce_async, synchronize
from horovod.torch.wrapped.gradients import Options
from horovod.torch.wrapped.naming import Names, OperationNames
from horovod.torch.wrapped.reducer import Reducer
from horovod.tuning import autotuning

Closure = Callable[[], Any]


class Wrapped(torch.optim.Optimizer):
    """A wrapped optimizer: shares parameter groups, state and hooks with the one it wraps.

    Attributes:
        _backward_passes_per_step: Backward passes per reduction.
        _communicates: Whether there is another rank in its process set.
        _gradient_predivide_factor: As the script gave it.
        _options: How gradients travel.
        _own_class: The wrapped optimizer's class, a base of this one's.
        _original: The one it wraps: a learning rate scheduler may know only that one.
        _number: Its number among the job's optimizers.
        _parameter_names: {parameter: name}, of all its parameters.
    """

    _backward_passes_per_step: int
    _communicates: bool
    _gradient_predivide_factor: float
    _number: int
    _options: Options
    _own_class: type[torch.optim.Optimizer]
    _operation_names: OperationNames
    _original: torch.optim.Optimizer
    _parameter_names: Names

    def step(self, closure: Closure | None = None, **arguments: Any) -> Any:
        """Update the parameters as the wrapped class does."""
        closures = () if closure is None else (closure,)
        result = self._own_class.step(self, *closures, **arguments)
        self._original._opt_called = True  # type: ignore[attr-defined]
        return result

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """**Local.** Load a state; the wrapped optimizer goes on sharing it."""
        self._own_class.load_state_dict(self, state_dict)
        self._original.state, self._original.param_groups = self.state, self.param_groups

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """**Local**, every rank alike. Add parameters, which are reduced, too."""
        self._own_class.add_param_group(self, param_group)
        number = len(self.param_groups) - 1
        for i, parameter in enumerate(self.param_groups[-1]["params"]):
            if parameter not in self._parameter_names:
                self._add(parameter, f"allreduce.noname.{number}.{i}")

    def set_backward_passes_per_step(self, passes: int) -> None:
        """**Local**, every rank alike. Communicate in every ``passes``-th backward pass.

        Raises:
            ValueError: ``passes`` is not a positive whole number.
        """
        self._backward_passes_per_step = checked_passes(passes)

    @property
    def backward_passes_per_step(self) -> int:
        """**Local**, every rank alike. Backward passes per reduction; may be set."""
        return self._backward_passes_per_step

    @backward_passes_per_step.setter
    def backward_passes_per_step(self, passes: int) -> None:
        self.set_backward_passes_per_step(passes)

    @property
    def op(self) -> int:
        """**Local.** How gradients are combined."""
        return self._options.op

    @property
    def gradient_predivide_factor(self) -> float:
        """**Local.** What gradients are divided by before the sum."""
        return self._gradient_predivide_factor

    @property
    def process_set(self) -> ProcessSet:
        """**Local.** The ranks that train together."""
        return self._options.process_set

    @property
    def sparse_as_dense(self) -> bool:
        """**Local.** Whether sparse gradients are reduced as dense ones."""
        return self._options.sparse_as_dense

    def _add(self, parameter: torch.Tensor, name: str) -> None:
        """Take ``parameter``, which was not wrapped before."""
        self._parameter_names[parameter] = name
        self._operation_names.add(parameter, name)


class DistributedGradients(Wrapped):
    """A wrapped optimizer whose gradients are reduced; see ``DistributedOptimizer``."""

    _reduced_for_scaler: bool
    _reducer: Reducer
    _should_synchronize: bool
    _synchronized: bool

    def synchronize(self) -> None:
        """**Collective.** Wait until all gradients are reduced; ends a training step.

        Also reduces gradients whose hook did not run (as zeros where there are none), so that ranks
        may use different parameters.

        Raises:
            HorovodInternalError: A reduction failed.
            AssertionError: Gradients were changed after ``backward()``, e.g. clipped, while they
                were on their way; do that after ``synchronize()``.
        """
        self._reducer.finish()
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
        if self._should_synchronize and not self._is_reduced_for_scaler():
            if self._synchronized and not self._reducer.pending:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(): the gradients are reduced a second time. Use "
                    "'with optimizer.skip_synchronize(): optimizer.step()'",
                    stacklevel=2,
                )
            if closure is None:
                self.synchronize()
            else:
                self._reducer.finish(only_started=True)
                closure = self._synchronizing(closure)
        result = super().step(closure, **arguments)
        self._synchronized = self._reduced_for_scaler = False
        return result

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """**Collective.** Whether ``step()`` itself unscales gradients; waits for them.

        torch's GradScaler asks this in its ``step`` before it looks at the gradients, which must be
        reduced then. It may skip our ``step()``.
        """
        self._wait_for_scaler()
        return bool(vars(self).get("_step_supports_amp_scaling", False))

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, supports: bool) -> None:
        vars(self)["_step_supports_amp_scaling"] = supports

    def _wait_for_scaler(self) -> None:
        """**Collective.** Wait for the gradients, which a GradScaler wants to see."""
        if self._should_synchronize and (self._reducer.pending or not self._synchronized):
            self.synchronize()
            self._reduced_for_scaler = True

    def _allreduce_grad_async(self, parameter: torch.Tensor) -> None:
        """**Collective.** Start reducing the gradient of ``parameter`` now (Horovod's own name).

        Libraries ask whether it is there; ``synchronize()`` waits for it.
        """
        self._reducer.start(parameter)

    def _is_reduced_for_scaler(self) -> bool:
        return self._reduced_for_scaler and not self._reducer.pending

    def zero_grad(self, set_to_none: bool = True) -> None:
        """**Local.** Reset the gradients, with torch's own signature.

        Raises:
            AssertionError: Gradients are on their way.
        """
        if self._reducer.pending:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before "
                "optimizer.step() or optimizer.synchronize(): the gradients are on their way. If "
                "they come from another optimizer's loss (a GAN), freeze these parameters in its "
                "backward pass: requires_grad_(False)"
            )
        self._own_class.zero_grad(self, set_to_none)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """**Local**, every rank alike. Communicate in every ``passes``-th backward pass."""
        super().set_backward_passes_per_step(passes)
        self._reducer.set_passes(passes)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """**Local.** Load a state; gradients on their way are forgotten."""
        self._reducer.reset()
        self._synchronized = self._reduced_for_scaler = False
        super().load_state_dict(state_dict)

    def _add(self, parameter: torch.Tensor, name: str) -> None:
        super()._add(parameter, name)
        if self._communicates:
            self._reducer.watch(parameter, self._operation_names(name))

    def _synchronizing(self, closure: Closure) -> Closure:
        def synchronized_closure() -> Any:
            loss = closure()
            with torch.no_grad():
                # LBFGS decides by the loss when it is done: alike on all ranks.
                common = isinstance(self, torch.optim.LBFGS) and self._communicates
                mean = self._mean_loss(loss) if common else None
                self.synchronize()
                return loss if mean is None else synchronize(mean)

        return synchronized_closure

    def _mean_loss(self, loss: Any) -> int:
        """**Collective.** Start to average ``loss``, a number or a tensor of one element."""
        return allreduce_async(
            torch.as_tensor(loss),
            name=self._operation_names("closure.loss"),
            op=Average,
            process_set=self._options.process_set,
        )


def checked_passes(passes: int) -> int:
    """**Local.** Return ``passes``, a positive whole number.

    Raises:
        ValueError: It is not.
    """
    if passes < 1:
        raise ValueError(f"backward_passes_per_step: expected a whole number > 0, got {passes}")
    return passes


# torch counts and hooks a step once per class that is not marked; the wrapped class's own step,
# which ours call, is the marked one.
for _class in (Wrapped, DistributedGradients):
    _class.step.hooked = True  # type: ignore[attr-defined]
