"""Elastic TensorFlow jobs: ``hvd.elastic``. See docs/elastic.md."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf
from horovod._keras.elastic import KerasState
from horovod.common.exceptions import HorovodInternalError
from horovod.elastic.loop import run_fn
from horovod.elastic.state import ObjectState, State
from horovod.elastic.variables import VariablesState
from horovod.tensorflow.mpi_ops import init, shutdown

__all__ = ["ObjectState", "State", "TensorFlowKerasState", "TensorFlowState", "run"]

Result = TypeVar("Result")


def run(
    func: Callable[..., Result] | None = None,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
) -> Any:
    """Return ``func`` such that it goes on while ranks are lost and come; a decorator.

    Arguments and errors as ``horovod.torch.elastic.run``.
    """
    if func is None:
        return functools.partial(run, checkpoint=checkpoint)
    return run_fn(_with_our_errors(func), _reset, checkpoint)


def _with_our_errors(func: Callable[..., Result]) -> Callable[..., Result]:
    """Return ``func``, which raises HorovodInternalError where an operation of ours has failed.

    TensorFlow knows only errors of its own.
    """

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Result:
        try:
            return func(*args, **kwargs)
        except tf.errors.FailedPreconditionError as error:
            raise HorovodInternalError(error.message) from error

    return wrapper


def _reset() -> None:
    shutdown()
    init()


class TensorFlowState(VariablesState):
    """What a training keeps while ranks come and go: variables, and plain objects.

    Args:
        variables: ``tf.Variable``s, in the same order on all ranks.
        session: None: sessions of TensorFlow 1 are not served.
        **kwargs: {attribute: first value}.

    Raises:
        ValueError: There are no variables.
        RuntimeError: There is a session.
    """

    def __init__(
        self, variables: Sequence[Any] | None = None, session: object = None, **kwargs: Any
    ) -> None:
        if session is not None:
            raise RuntimeError(
                "TensorFlowState: sessions of TensorFlow 1 are not served; use eager mode"
            )
        if variables is None:
            raise ValueError("TensorFlowState: expected variables: eager mode does not know them")
        self.variables = list(variables)
        super().__init__(lambda: self.variables, **kwargs)


class TensorFlowKerasState(KerasState):
    """What a training of ``tf.keras`` keeps while ranks come and go.

    Args:
        model: Built: it has its weights.
        optimizer: None: the one that the model was compiled with.
        backend: Accepted for compatibility.
        **kwargs: {attribute: first value}.
    """
