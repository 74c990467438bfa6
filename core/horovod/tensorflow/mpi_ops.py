"""The operations themselves, by Horovod's names, and their gradients; scripts import from here.

An operation is identified between ranks by its name. In a graph that is the name of its node; in
eager mode it is the script's ``name``, without one the next number of its kind, so all ranks must
issue unnamed operations in the same order. Tensors of one operation are handed to the engine
together; several operations of a graph run side by side, in any order.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from horovod.common import basics as _basics
from horovod.common import process_sets as _process_sets
from horovod.common.basics import *  # noqa: F403
from horovod.common.exceptions import HorovodInternalError as HorovodInternalError
from horovod.common.gradients import warn_at_exit
from horovod.common.operation import set_number
from horovod.common.process_set import ProcessSet, global_process_set
from horovod.common.process_sets import *  # noqa: F403
from horovod.common.reduce_ops import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
)
from horovod.common.reduce_ops import (
    handle_average_backwards_compatibility as handle_average_backwards_compatibility,
)
from horovod.common.util import num_rank_is_power_2 as check_num_rank_power_of_2
from horovod.tensorflow import library as _library
from horovod.tensorflow.tracing import refuse_xla
from horovod.tuning import autotuning as _autotuning

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "alltoall",
    "broadcast",
    "broadcast_",
    "check_num_rank_power_of_2",
    "grouped_allgather",
    "handle_average_backwards_compatibility",
    "init",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "shutdown",
    "size_op",
]
__all__ += _process_sets.__all__
__all__ += _basics.__all__

_operations = _library.load()


def init(comm: object = None, process_sets: object = None) -> None:
    """Start the runtime. **Collective:** all ranks. Does nothing when it runs already.

    Args:
        comm: None (all ranks), a list of world ranks, or an mpi4py communicator (duplicated);
            processes that a list leaves out get a ValueError.
        process_sets: None, a list of process sets (or of rank lists), the same on all ranks, or
            "dynamic"; sets may be added and removed later in any case.

    Raises:
        ValueError: A setting is wrong, or the ranks disagree on one; the same error on every rank.
        RuntimeError: A wrong launcher, launchers' variables that disagree, a forked child, or the
            ranks do not meet or connect.
    """
    _autotuning.init(comm, process_sets)
    _autotuning.serve_from_a_thread()  # no thread of a graph's calls here
    _library.say_that_gpus_are_staged()
    warn_at_exit()


def shutdown() -> None:
    """End the runtime; pending operations fail on all ranks. ``init`` may be called again."""
    _basics.shutdown()


# ---------------------------------------------------------------- operations


def _allreduce(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    may_compress: bool = False,
) -> Any:
    """**Collective.** Return the reduction of ``tensor`` over all ranks; differentiable.

    Args:
        tensor: Any shape, the same shape and type on all ranks.
        name: Name of the operation, the same on all ranks.
        op: Average, Sum, Adasum, Min, Max or Product.
        prescale_factor: Factor before the reduction.
        postscale_factor: Factor after it.
        ignore_name_scope: In a graph the ranks know it as ``name`` alone, whatever name scopes are
            around it.
        process_set: Its members take part.
        may_compress: It may travel shorter where the parameters in force say so.

    Raises:
        ValueError: ``hvd.init()`` was not called, or the process set is not registered.
        tf.errors.InvalidArgumentError: The request is refused on this rank.
        tf.errors.FailedPreconditionError: The ranks disagree, a rank died, or the engine was shut
            down.
    """
    factors = _factors(op, prescale_factor, postscale_factor)
    return _run(
        "allreduce",
        [tensor],
        name,
        ignore_name_scope,
        process_set,
        may_compress=may_compress,
        **factors,
    )[0]


def _grouped_allreduce(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    may_compress: bool = False,
) -> list[Any]:
    """**Collective.** As ``_allreduce`` for several tensors, of any types, handed over together."""
    factors = _factors(op, prescale_factor, postscale_factor)
    reduced: list[Any] = _run(
        "allreduce",
        tensors,
        name,
        ignore_name_scope,
        process_set,
        grouped=True,
        may_compress=may_compress,
        **factors,
    )
    return reduced


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """**Collective.** Return the ranks' tensors concatenated along dimension 0; differentiable.

    Args:
        tensor: Shape (n_rank, ...): the first dimension may differ between ranks, nothing else.
        name: As of the other operations, and so are the others; errors as ``_allreduce``.
        ignore_name_scope: See there.
        process_set: Its members take part.

    Returns:
        Shape (sum of n_rank, ...), in the order of the ranks.
    """
    return _rows(_run("allgather", [tensor], name, ignore_name_scope, process_set), [tensor])[0]


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """**Collective.** As ``allgather`` for several tensors, handed over together."""
    gathered = _run("allgather", tensors, name, ignore_name_scope, process_set, grouped=True)
    return _rows(gathered, tensors)


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """**Collective.** Return root's tensor on all ranks; differentiable.

    Args:
        tensor: The same shape and type on all ranks.
        root_rank: Global rank of the sender, a member of the process set.
        name: As of the other operations, and so are the others; errors as ``_allreduce``.
        ignore_name_scope: See there.
        process_set: Its members take part.
    """
    return _run("broadcast", [tensor], name, ignore_name_scope, process_set, root_rank=root_rank)[0]


def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """**Collective.** Overwrite ``variables`` by root's, handed over together; return their values.

    Args:
        variables: tf.Variable or Keras variables: the same shapes and types on all ranks.
        root_rank: Global rank of the sender, a member of the process set.
        name: Name of the operation, the same on all ranks; errors as ``_allreduce``.
        process_set: Its members take part.
    """
    variables = list(variables)
    if not variables:
        return []
    received = _run(
        "broadcast", variables, name, False, process_set, root_rank=root_rank, grouped=True
    )
    written = [variable.assign(value) for variable, value in zip(variables, received, strict=True)]
    if tf.executing_eagerly():
        return list(received)
    with tf.control_dependencies([each for each in written if each is not None]):
        return [tf.identity(value) for value in received]


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """**Collective.** Send rows to every rank and return what all sent here; differentiable.

    Args:
        tensor: Shape (n_rank, ...): the first dimension may differ between ranks, nothing else.
        splits: Shape (size of the set,), whole numbers: rows for each rank, in order; rows beyond
            their sum are not sent. None: equal parts.
        name: As of the other operations, and so are the others; errors as ``_allreduce``.
        ignore_name_scope: See there.
        process_set: Its members take part.

    Returns:
        The parts of all ranks for this one, concatenated by rank, shape (rows received, ...); with
        ``splits`` a pair of it and the rows received from each rank, int32.
    """
    received, rows = _alltoall(tensor, splits, name, ignore_name_scope, process_set)
    return received if splits is None else (received, rows)


def _alltoall(
    tensor: Any,
    splits: Any,
    name: str | None,
    ignore_name_scope: bool,
    process_set: ProcessSet,
) -> tuple[Any, Any]:
    rows = tf.zeros([0], tf.int32) if splits is None else tf.convert_to_tensor(splits)
    if rows.dtype.is_floating:
        raise ValueError(f"alltoall: expected splits of whole numbers, got {rows.dtype.name}")
    size = tf.cast(rows, tf.int32)
    received, rows = _run("alltoall", [tensor], name, ignore_name_scope, process_set, splits=size)
    if not tf.executing_eagerly():
        rows.set_shape([process_set.size()])
    return _rows(received, [tensor])[0], rows


def _reducescatter(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """**Collective.** Return this rank's rows of the reduction over all ranks; differentiable.

    Arguments and errors as ``_allreduce``, where ``op`` is Average or Sum.

    Returns:
        Shape (rows, ...): n // size rows, one more on the first n % size ranks.
    """
    factors = _factors(op, prescale_factor, postscale_factor)
    scattered = _run("reducescatter", [tensor], name, ignore_name_scope, process_set, **factors)
    return _rows(scattered, [tensor])[0]


def _grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """**Collective.** As ``_reducescatter`` for several tensors, handed over together."""
    factors = _factors(op, prescale_factor, postscale_factor)
    scattered = _run(
        "reducescatter", tensors, name, ignore_name_scope, process_set, grouped=True, **factors
    )
    return _rows(scattered, tensors)


def join() -> Any:
    """**Collective.** Say that this rank has nothing more to contribute; wait for the others.

    Until all ranks have joined, this one contributes zeros to the allreduces of the others.

    Returns:
        The rank that joined last, int32, a scalar.
    """
    _basics.engine()
    return _operations.horovod_join(eager=tf.executing_eagerly())


def rank_op(name: str | None = None) -> Any:
    """**Local.** Return the rank as of when the operation runs, int32."""
    return _operations.horovod_rank(name=name)


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """**Local.** Return the number of ranks of a process set as of when it runs, int32."""
    return _operations.horovod_size(process_set_id=process_set_id, name=name)


def local_rank_op(name: str | None = None) -> Any:
    """**Local.** Return the rank on this host as of when the operation runs, int32."""
    return _operations.horovod_local_rank(name=name)


def local_size_op(name: str | None = None) -> Any:
    """**Local.** Return the number of ranks on this host as of when it runs, int32."""
    return _operations.horovod_local_size(name=name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """**Local.** Return whether this rank is in a process set as of when it runs, int32.

    Returns:
        1 or 0; -1 before ``hvd.init()``, -2 where there is no such process set.
    """
    return _operations.horovod_process_set_included(process_set_id=process_set_id, name=name)


# ---------------------------------------------------------------- the way to the library


def _run(
    operation: str,
    tensors: Sequence[Any],
    name: str | None,
    ignore_name_scope: bool,
    process_set: ProcessSet,
    **attributes: Any,
) -> Any:
    """**Collective.** Run one operation of the library.

    Returns:
        Its outputs: a list of as many tensors; of an alltoall a pair of such a list and the rows.
    """
    _basics.engine()  # not in a forked child, and not before init
    number = set_number(process_set)
    if number not in _basics.job().process_sets:
        raise ValueError(f"{process_set!r}: there is no process set of this number in this job")
    tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
    eager = tf.executing_eagerly()
    if not eager:
        refuse_xla(f"hvd.{operation}")
    if eager:
        attributes["tensor_name"] = name or ""
    elif name is not None and ignore_name_scope:
        attributes["tensor_name"] = name
    node = None if eager else _node_name(name or _name_of_node(operation, tensors[0]))
    run = getattr(_operations, f"horovod_{operation}")
    outputs = run(tensors=tensors, process_set_id=number, eager=eager, name=node, **attributes)
    if not eager:
        _use(tf.nest.flatten(outputs)[0])
    return outputs


def _use(output: Any) -> None:
    """Have the operation of ``output`` run though nothing on this rank may depend on it.

    A graph leaves out what nothing depends on, and ranks that do depend on it would wait for ever.
    This is an operation that depends on it and cannot be left out: a stateful one, of which none
    waits for another, as those of a graph do otherwise.
    """
    graph = output.graph
    manager = getattr(graph, "experimental_acd_manager", None)
    if manager is not None:  # not in a graph of gradients, nor in one of a session
        manager.run_independently(_operations.horovod_use(tensor=output))


def _name_of_node(operation: str, tensor: Any) -> str:
    """Return a name for a node to which the script gives none, the same on all ranks.

    An eager tensor that a function captures is called by its number, and ranks may have made
    different numbers of them.
    """
    place, _, own = tensor.name.partition(":")[0].rpartition("/")
    is_number = own.partition("_")[0].isdigit()
    return f"Horovod{operation.title()}_{place if is_number else tensor.name}".rstrip("_")


def _node_name(name: str) -> str:
    """Return ``name`` as TensorFlow allows it for a node."""
    text = re.sub("[^A-Za-z0-9_./-]", "_", name)
    return text if re.match("[A-Za-z0-9.]", text) else f"h{text}"


def _factors(op: int, prescale: float, postscale: float) -> dict[str, int]:
    """Return the attributes of a reduction."""
    return {
        "reduce_op": op,
        "prescale_bits": _bits(prescale),
        "postscale_bits": _bits(postscale),
    }


def _bits(factor: float) -> int:
    """Return ``factor`` as a whole number: attributes of TensorFlow have 32 bits for others."""
    (bits,) = struct.unpack("<q", struct.pack("<d", float(factor)))
    return int(bits)


def _factor(bits: int) -> float:
    """Return what ``_bits`` was made of."""
    (factor,) = struct.unpack("<d", struct.pack("<q", bits))
    return float(factor)


def _rows(outputs: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    """Tell a graph that ``outputs`` are like ``inputs`` but for the number of rows."""
    if not tf.executing_eagerly():
        for output, each in zip(outputs, inputs, strict=True):
            shape = tf.convert_to_tensor(each).shape
            if shape.rank:
                output.set_shape([None, *shape[1:]])
    return list(outputs)


# ---------------------------------------------------------------- gradients


class _Manner:
    """What an operation and its gradient have in common."""

    def __init__(self, op: Any) -> None:
        self.op = op
        number = op.get_attr("process_set_id")
        self.process_set = _basics.job().process_sets[number]
        name = tf.compat.as_str(op.get_attr("tensor_name"))
        self.name = f"{name}.gradient" if name else None
        self.grouped = bool(op.get_attr("grouped"))

    def run(self, operation: str, tensors: Sequence[Any], **how: Any) -> Any:
        """**Collective.** Run ``operation`` under the gradient's name."""
        name = self.name
        return _run(
            operation,
            tensors,
            name,
            name is not None,
            self.process_set,
            grouped=self.grouped,
            **how,
        )

    def sums(self, gradients: Sequence[Any], op: int) -> list[Any]:
        """**Collective.** Return the reductions of ``gradients`` by ``op``."""
        return list(self.run("allreduce", gradients, **_factors(op, 1.0, 1.0)))

    def reduction(self) -> tuple[int, float, float]:
        """Return the reduction and its factors."""
        bits = [self.op.get_attr(f"{place}scale_bits") for place in ("pre", "post")]
        return self.op.get_attr("reduce_op"), _factor(bits[0]), _factor(bits[1])


def _dense(gradients: Sequence[Any], op: Any) -> list[Any]:
    """Return the gradients as tensors of the outputs' types: of an unused one it is of any."""
    pairs = zip(gradients, op.inputs, strict=False)
    return [tf.cast(tf.convert_to_tensor(gradient), like.dtype) for gradient, like in pairs]


def _of_allreduce(op: Any, *gradients: Any) -> list[Any]:
    """Return Horovod's gradient: the same reduction; of Min, Max and Product the derivative."""
    manner = _Manner(op)
    reduce_op, prescale, postscale = manner.reduction()
    dense = _dense(gradients, op)
    if reduce_op not in (Min, Max, Product):
        factors = _factors(reduce_op, prescale, postscale)
        return list(manner.run("allreduce", dense, **factors))
    totals = manner.sums(dense, Sum)
    rows = manner.run("allgather", [tensor[tf.newaxis] for tensor in op.inputs])
    return [
        total
        * _derivative(each * tf.cast(prescale, each.dtype), reduce_op, manner.process_set)
        * tf.cast(prescale * postscale, each.dtype)
        for total, each in zip(totals, rows, strict=True)
    ]


def _derivative(rows: Any, reduce_op: int, process_set: ProcessSet) -> Any:
    """Return d(reduction) / d(this rank's row) of ``rows``, shape (size of the set, ...)."""
    own = process_set.rank() or 0
    if reduce_op == Product:
        return tf.reduce_prod(tf.concat([rows[:own], rows[own + 1 :]], 0), 0)
    reduce = tf.reduce_min if reduce_op == Min else tf.reduce_max
    is_extreme = tf.cast(tf.equal(rows, reduce(rows, 0, keepdims=True)), rows.dtype)
    return is_extreme[own] / tf.reduce_sum(is_extreme, 0)


def _of_allgather(op: Any, *gradients: Any) -> list[Any]:
    """Return Horovod's gradient: this rank's rows of the average of the ranks' gradients."""
    manner = _Manner(op)
    means = manner.sums(_dense(gradients, op), Average)
    counts = tf.stack([tf.shape(tensor)[0] for tensor in op.inputs])
    (counts,) = manner.run("allgather", [counts[tf.newaxis]])
    # As of when it runs: the graph is the same on all ranks, also on the first one, which has no
    # rows before its own and would leave the counts out.
    is_before = tf.less(tf.constant(manner.process_set.ranks), rank_op())
    before = tf.reduce_sum(counts * tf.cast(is_before, counts.dtype)[:, tf.newaxis], 0)
    return [
        tf.ensure_shape(mean[start : start + tf.shape(tensor)[0]], tensor.shape)
        for mean, tensor, start in zip(
            means, op.inputs, tf.unstack(before, len(means)), strict=True
        )
    ]


def _of_broadcast(op: Any, *gradients: Any) -> list[Any]:
    """Return Horovod's gradient: the average of the ranks' gradients at the root, else zero."""
    means = _Manner(op).sums(_dense(gradients, op), Average)
    # As of when it runs: the graph is the same on all ranks. An average that one rank does not need
    # would be left out there.
    at_root = tf.equal(rank_op(), op.get_attr("root_rank"))
    return [tf.where(at_root, mean, tf.zeros_like(mean)) for mean in means]


def _of_alltoall(op: Any, gradient: Any, _: Any) -> list[Any]:
    """Return the gradient, which travels back the way the parts came."""
    manner = _Manner(op)
    tensor, rows = op.inputs[0], op.outputs[1]
    dense = _dense([gradient], op)[0]
    back, _ = _alltoall(dense, rows, manner.name, manner.name is not None, manner.process_set)
    unsent = tf.shape(tensor)[0] - tf.shape(back)[0]
    paddings = tf.concat([[[0, unsent]], tf.zeros([tf.rank(tensor) - 1, 2], tf.int32)], 0)
    return [tf.ensure_shape(tf.pad(back, paddings), tensor.shape), None]


def _of_reducescatter(op: Any, *gradients: Any) -> list[Any]:
    """Return Horovod's gradient: an allgather, times the number of ranks for Sum."""
    manner = _Manner(op)
    reduce_op, prescale, postscale = manner.reduction()
    factor = prescale * postscale
    if reduce_op == Sum:
        factor *= manner.process_set.size() or 1
    scaled = [each * tf.cast(factor, each.dtype) for each in _dense(gradients, op)]
    gathered = manner.run("allgather", scaled)
    return [
        tf.ensure_shape(each, tensor.shape)
        for each, tensor in zip(gathered, op.inputs, strict=True)
    ]


tf.RegisterGradient("HorovodAllreduce")(_of_allreduce)
tf.RegisterGradient("HorovodAllgather")(_of_allgather)
tf.RegisterGradient("HorovodBroadcast")(_of_broadcast)
tf.RegisterGradient("HorovodAlltoall")(_of_alltoall)
tf.RegisterGradient("HorovodReducescatter")(_of_reducescatter)
for _name in ("Use", "Join", "Rank", "Size", "LocalRank", "LocalSize", "ProcessSetIncluded"):
    tf.no_gradient(f"Horovod{_name}")
