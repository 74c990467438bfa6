"""Broadcasts of variables and of any object."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import tensorflow as tf
from horovod.common import objects
from horovod.common import variables as eager
from horovod.common.process_set import ProcessSet, global_process_set
from horovod.common.variables import short_name
from horovod.tensorflow import operations
from horovod.tensorflow.tracing import (
    as_it_stands,
    in_session_graph,
    refuse_xla,
    unique_label,
)

__all__ = [
    "BroadcastGlobalVariablesHook",
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
]

T = TypeVar("T")

_SESSIONS = (
    "{}: sessions of TensorFlow 1 are not served; call hvd.broadcast_variables(model.variables, "
    "root_rank=0) in eager mode or in a tf.function"
)


@as_it_stands
def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """**Collective.** Give all ``variables`` root's values, in eager mode or in a function.

    Args:
        variables: ``tf.Variable`` or Keras's, in the same order on all ranks; usually
            ``model.variables``, then ``optimizer.variables``.
        root_rank: Global rank of the sender.
        process_set: Its members take part; root is one of them.
        inplace: Accepted for compatibility; variables are assigned to in any case.

    Returns:
        In a graph the operation that does it, else None.

    Raises:
        ValueError: The ranks have other variables, or root or this rank is not in the process set.
        RuntimeError: XLA would compile this.
        HorovodInternalError: The operation failed on all ranks, or a rank died.
    """
    variables = list(variables)
    if tf.executing_eagerly():
        eager.broadcast_variables(variables, root_rank, process_set)
        return None
    refuse_xla("hvd.broadcast_variables")
    label = unique_label("variable")
    assigned = []
    for i, variable in enumerate(variables):
        name = f"{label}.{i}.{short_name(variable)}"
        value = tf.convert_to_tensor(variable)
        sent = operations.broadcast(
            value, root_rank, name=name, ignore_name_scope=True, process_set=process_set
        )
        assigned.append(variable.assign(sent))
    return tf.group(*[each for each in assigned if each is not None])


def broadcast_global_variables(root_rank: int) -> Any:
    """**Collective**, where it runs. Give all variables of a session's graph root's values.

    Returns:
        The operation that does it.

    Raises:
        RuntimeError: In eager mode and in functions, where nobody knows what all variables are.
    """
    if not in_session_graph():
        raise RuntimeError(
            "hvd.broadcast_global_variables: only a graph of a TensorFlow 1 session knows what all "
            "variables are; call hvd.broadcast_variables(model.variables, root_rank=0)"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook:
    """Of estimators, which TensorFlow has no longer: raises RuntimeError when it is made."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        raise RuntimeError(_SESSIONS.format("hvd.BroadcastGlobalVariablesHook"))


def broadcast_object(
    obj: T,
    root_rank: int = 0,
    session: object = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> T:
    """**Collective.** Return root's ``obj`` on all ranks (the very same object on root).

    Args:
        obj: Anything that cloudpickle takes; ignored on other ranks than root.
        root_rank: Global rank of the sender.
        session: None: sessions are not served.
        name: Name of the operation, the same on all ranks.
        process_set: Its members take part; root is one of them.

    Raises:
        RuntimeError: There is a session.
        ValueError: Root or this rank is not in the process set.
        HorovodInternalError: The operation failed on all ranks, or a rank died.
    """
    _refuse_session(session, "hvd.broadcast_object")
    return objects.broadcast_object(obj, root_rank, name or "object", process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: object = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[T], T]:
    """**Local.** Return the function that takes an object and returns root's.

    Arguments and errors as ``broadcast_object``.
    """
    _refuse_session(session, "hvd.broadcast_object_fn")
    return lambda obj: broadcast_object(obj, root_rank, None, name, process_set)


def allgather_object(
    obj: T,
    session: object = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[T]:
    """**Collective.** Return every rank's ``obj``, in the order of the ranks.

    Arguments and errors as ``broadcast_object``.
    """
    _refuse_session(session, "hvd.allgather_object")
    return objects.allgather_object(obj, name or "object", process_set)


def _refuse_session(session: object, what: str) -> None:
    if session is not None:
        raise RuntimeError(_SESSIONS.format(what))
