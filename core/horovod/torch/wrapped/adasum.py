"""op=Adasum: every rank takes its own step, and the ranks' steps are combined.

Adasum combines directions that are alike like an average and orthogonal ones like a sum, so what is
combined is what the optimizer does with a gradient, not the gradient. A local step starts at the
common parameters ``x``; with ``d_r = x_r - x`` of rank ``r`` the new parameters are
``x + adasum(d_0, d_1, ...)``, the same on all ranks.

The step as a whole is local, so clipping, closures and fused optimizers work as without Horovod.

With torch's GradScaler every rank has a scale of its own and finds its own gradients finite or not.
A step is skipped on all ranks when one has to skip it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from horovod.torch import operations
from horovod.torch.wrapped.distributed import Closure, Wrapped
from horovod.tuning import autotuning


class AdasumDeltas(Wrapped):
    """A wrapped optimizer whose steps are combined by Adasum; see ``DistributedOptimizer``."""

    def synchronize(self) -> None:
        """**Local.** Do nothing: gradients are not reduced."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Not possible: the ranks' steps are combined within ``step()``.

        Raises:
            AssertionError: Always.
        """
        raise AssertionError("optimizer.skip_synchronize() cannot be used with op=Adasum")
        yield

    def step(self, closure: Closure | None = None, **arguments: Any) -> Any:
        """**Collective.** Take a local step and combine it with those of the other ranks.

        Args:
            closure: Recomputes the loss, of this rank alone.
            **arguments: What the wrapped class's own ``step`` takes.

        Raises:
            HorovodInternalError: The ranks disagree, a rank died, or the engine was shut down.
        """
        found_inf = getattr(self, "found_inf", None)  # set by GradScaler
        if self._communicates and found_inf is not None and self._is_skipped(found_inf):
            autotuning.optimizer_synchronized(self._number)
            return None
        watched = self._parameter_names if self._communicates else {}
        starts = {p: p.detach().clone() for p in watched if p.requires_grad}
        with self._without_scales():
            result = super().step(closure, **arguments)
        with torch.no_grad():
            self._combine(starts)
        autotuning.optimizer_synchronized(self._number)
        return result

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """**Local.** Whether torch's GradScaler leaves unscaling and skipping to ``step()``.

        It then calls ``step()`` on every rank, with ``found_inf`` and ``grad_scale`` set meanwhile.
        """
        return self._communicates or self._scales_itself

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, supports: bool) -> None:
        vars(self)["_step_supports_amp_scaling"] = supports

    @property
    def _scales_itself(self) -> bool:
        """Whether the wrapped class's ``step`` unscales gradients."""
        return bool(vars(self).get("_step_supports_amp_scaling", False))

    def _is_skipped(self, found_inf: torch.Tensor) -> bool:
        """**Collective.** Whether a rank has gradients that are not finite; else unscale ours."""
        found = operations.allreduce(
            found_inf.detach().float().reshape(1).cpu(),
            name=self._operation_names("found_inf"),
            op=operations.Max,
            process_set=self._options.process_set,
        )
        if bool(found.item()):
            return True
        scale = None if self._scales_itself else getattr(self, "grad_scale", None)
        if scale is not None:
            for parameter in self._parameter_names:
                if parameter.grad is not None:
                    parameter.grad.div_(scale.to(parameter.grad.device))
        return False

    @contextmanager
    def _without_scales(self) -> Iterator[None]:
        """Hide what GradScaler has set from a class that refuses it."""
        names = () if self._scales_itself else ("found_inf", "grad_scale")
        hidden = {name: vars(self).pop(name) for name in names if name in vars(self)}
        try:
            yield
        finally:
            vars(self).update(hidden)

    def _combine(self, starts: dict[torch.Tensor, torch.Tensor]) -> None:
        compression = self._options.compression
        started = []
        for parameter, start in starts.items():
            delta, context = compression.compress(parameter - start)
            name = self._operation_names(self._parameter_names[parameter])
            handle = operations.allreduce_async_(
                delta.contiguous(),
                name=name,
                op=operations.Adasum,
                process_set=self._options.process_set,
            )
            started.append((parameter, start, context, handle))
        for parameter, start, context, handle in started:
            delta = compression.decompress(operations.synchronize(handle), context)
            parameter.copy_(start.add_(delta))


AdasumDeltas.step.hooked = True  # type: ignore[attr-defined]
