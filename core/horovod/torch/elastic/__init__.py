"""Elastic PyTorch jobs: ``hvd.elastic``. See docs/elastic.md."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar, overload

from horovod.elastic.loop import run_fn
from horovod.elastic.state import ObjectState, State
from horovod.torch.elastic import sampler, state
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.elastic.state import TorchState
from horovod.torch.mpi_ops import init, shutdown

__all__ = [
    "ElasticSampler",
    "ObjectState",
    "State",
    "TorchState",
    "run",
    "sampler",
    "state",
]

Result = TypeVar("Result")


@overload
def run(func: Callable[..., Result]) -> Callable[..., Result]: ...


@overload
def run(
    *, checkpoint: str | os.PathLike[str] | None = None
) -> Callable[[Callable[..., Result]], Callable[..., Result]]: ...


def run(
    func: Callable[..., Result] | None = None,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
) -> Callable[..., Result] | Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Return ``func`` such that it goes on while ranks are lost and come; a decorator.

    The function starts with rank 0's state on all ranks. It ends and is called again when a rank is
    lost (from the last commit) and when hosts have changed (from where it was), so that it has to
    find in its state how far it is. Before it, a script makes no collective call: ranks that join
    later would make it alone.

    Args:
        func: Its first argument is the state, e.g. a ``TorchState``.
        checkpoint: File for the last commit of a job that has to end (SIGTERM; a lost rank in a job
            without a driver), from which the next job goes on; None: the one that
            HOROVOD_ELASTIC_CHECKPOINT names, if any.

    Raises:
        SystemExit: By the function: the job has to end and can be started again (code 75), or this
            process is no longer needed (code 0).
        HorovodInternalError: By the function: ranks disagree in a way that starting again does not
            mend.
    """
    if func is None:
        return lambda function: run_fn(function, _reset, checkpoint)
    return run_fn(func, _reset, checkpoint)


def _reset() -> None:
    shutdown()
    init()
