"""op=Adasum: every rank takes its own step, and the ranks' steps are combined.

Adasum combines directions that are alike like an average and orthogonal ones like a sum, so what is
combined is what the optimizer does with a gradient, not the gradient. A local step starts at the
common parameters ``x``; with ``d_r = x_r - x`` of rank ``r`` the new parameters are
``x + adasum(d_0, d_1, ...)``, the same on all ranks.

The step as a whole is local, so clipping, closures and fused optimizers work as without Horovod.
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
        watched = self._parameter_names if self._communicates else {}
        starts = {p: p.detach().clone() for p in watched if p.requires_grad}
        result = super().step(closure, **arguments)
        with torch.no_grad():
            self._combine(starts)
        autotuning.optimizer_synchronized(self._number)
        return result

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
