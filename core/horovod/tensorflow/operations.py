"""What scripts call: reductions with compression, of dense and of sparse tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from horovod.common import rounds
from horovod.common.gradients import note_reduction
from horovod.common.process_set import ProcessSet, global_process_set
from horovod.common.reduce_ops import Adasum, Average, Sum, resolve_op
from horovod.tensorflow.compression import Compression, Compressor
from horovod.tensorflow.mpi_ops import (
    _allreduce,
    _grouped_allreduce,
    _grouped_reducescatter,
    _reducescatter,
    allgather,
    alltoall,
    broadcast,
    broadcast_,
    grouped_allgather,
    join,
    size_op,
)

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "reducescatter",
]


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """**Collective.** Return the reduction of ``tensor`` over all ranks; differentiable.

    Args:
        tensor: A tensor or variable: any shape, the same shape and type on all ranks. Or
            ``tf.IndexedSlices``: the result has all ranks' slices, of which each rank may have
            another number.
        average: Deprecated: True means ``op=Average``, False ``op=Sum``.
        device_dense: Device on which dense tensors are communicated and compressed.
        device_sparse: The same for sparse ones.
        compression: How floating-point tensors travel.
        op: Average (default), Sum, Adasum, Min, Max or Product.
        prescale_factor: Factor before the reduction.
        postscale_factor: Factor after it.
        name: Name of the operation, the same on all ranks.
        process_set: Its members take part.
        ignore_name_scope: In a graph the ranks know it as ``name`` alone, whatever name scopes are
            around it.

    Raises:
        ValueError: Both ``op`` and ``average``, ``hvd.init()`` was not called, or the process set
            is not registered.
        NotImplementedError: Another ``op`` than Average and Sum, or a factor, for
            ``tf.IndexedSlices``.
        tf.errors.InvalidArgumentError: The request is refused on this rank.
        tf.errors.FailedPreconditionError: The ranks disagree, a rank died, or the engine was shut
            down.
    """
    op = resolve_op(op, average)
    note_reduction()
    how: dict[str, Any] = {"process_set": process_set, "ignore_name_scope": ignore_name_scope}
    if isinstance(tensor, tf.IndexedSlices):
        with tf.device(device_sparse):
            _check_sparse(op, prescale_factor, postscale_factor)
            values = allgather(tensor.values, _part(name, "values"), **how)
            indices = allgather(tensor.indices, _part(name, "indices"), **how)
            return _slices(tensor, values, indices, op, process_set)
    with tf.device(device_dense):
        compressed, context = compression.compress(tf.convert_to_tensor(tensor))
        reduced = _allreduce(
            compressed,
            name,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            may_compress=compression.may_compress,
            **how,
        )
        return compression.decompress(reduced, context)


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """**Collective.** As ``allreduce`` for several tensors, dense and sparse ones; differentiable.

    They are handed over together: none of them travels before the last one is there.
    """
    tensors = list(tensors)
    op = resolve_op(op, average)
    note_reduction()
    how: dict[str, Any] = {"process_set": process_set, "ignore_name_scope": ignore_name_scope}
    sparse = [i for i, each in enumerate(tensors) if isinstance(each, tf.IndexedSlices)]
    dense = [i for i in range(len(tensors)) if i not in set(sparse)]
    results: dict[int, Any] = {}
    if sparse:
        with tf.device(device_sparse):
            _check_sparse(op, prescale_factor, postscale_factor)
            values, indices = (
                grouped_allgather(
                    [getattr(tensors[i], part) for i in sparse], _part(name, part), **how
                )
                for part in ("values", "indices")
            )
            for i, own_values, own_indices in zip(sparse, values, indices, strict=True):
                results[i] = _slices(tensors[i], own_values, own_indices, op, process_set)
    if dense:
        with tf.device(device_dense):
            pairs = [compression.compress(tf.convert_to_tensor(tensors[i])) for i in dense]
            reduced = _grouped_allreduce(
                [compressed for compressed, _ in pairs],
                name=name,
                op=op,
                prescale_factor=prescale_factor,
                postscale_factor=postscale_factor,
                may_compress=compression.may_compress,
                **how,
            )
            for i, tensor, (_, context) in zip(dense, reduced, pairs, strict=True):
                results[i] = compression.decompress(tensor, context)
    return [results[i] for i in range(len(tensors))]


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """**Collective.** Return this rank's rows of the reduction over all ranks; differentiable.

    Args:
        tensor: Shape (n, ...), n >= 0: the same shape and type on all ranks.
        device_dense: As of ``allreduce``, and so are the others; ``op`` is Average or Sum.
        compression: See there.
        op: See there.
        name: See there.
        process_set: See there.
        ignore_name_scope: See there.
        prescale_factor: See there.
        postscale_factor: See there.

    Returns:
        Shape (rows, ...): n // size rows, one more on the first n % size ranks.
    """
    with tf.device(device_dense):
        compressed, context = compression.compress(tf.convert_to_tensor(tensor))
        reduced = _reducescatter(
            compressed, name, op, ignore_name_scope, process_set, prescale_factor, postscale_factor
        )
        return compression.decompress(reduced, context)


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
) -> list[Any]:
    """**Collective.** As ``reducescatter`` for several tensors, handed over together."""
    if not tensors:
        return []
    with tf.device(device_dense):
        pairs = [compression.compress(tf.convert_to_tensor(tensor)) for tensor in tensors]
        reduced = _grouped_reducescatter(
            [compressed for compressed, _ in pairs],
            name,
            op,
            ignore_name_scope,
            process_set,
            prescale_factor,
            postscale_factor,
        )
        return [
            compression.decompress(tensor, context)
            for tensor, (_, context) in zip(reduced, pairs, strict=True)
        ]


def _part(name: str | None, part: str) -> str | None:
    return None if name is None else f"{name}.{part}"


def _check_sparse(op: int, prescale: float, postscale: float) -> None:
    if op == Adasum:
        raise NotImplementedError(
            "there is no Adasum of tf.IndexedSlices; make them dense: sparse_as_dense=True"
        )
    if op not in (Average, Sum):
        raise NotImplementedError(
            f"expected op Average or Sum for tf.IndexedSlices, got {op!r}; make them dense"
        )
    if prescale != 1.0 or postscale != 1.0:
        raise NotImplementedError(
            "expected no factors for tf.IndexedSlices, got "
            f"{prescale} before and {postscale} after; scale their values"
        )


def _slices(like: Any, values: Any, indices: Any, op: int, process_set: ProcessSet) -> Any:
    """Return all ranks' slices, by which an average of ``op`` is meant if it is one."""
    if op == Average:
        number = process_set.size() or 1
        if rounds.is_elastic() and not tf.executing_eagerly():  # a graph outlives a round
            number = size_op(process_set.process_set_id or 0)
        values = values / tf.cast(number, values.dtype)
    return tf.IndexedSlices(values, indices, dense_shape=like.dense_shape)
