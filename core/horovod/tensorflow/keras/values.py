"""Collectives of values that TensorFlow makes tensors of."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from horovod.common.reduce_ops import Average
from horovod.tensorflow import operations
from horovod.tensorflow.compression import Compression, Compressor

__all__ = ["allgather", "allreduce", "broadcast", "reducescatter"]


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: type[Compressor] = Compression.none,
) -> Any:
    """**Collective.** Return the reduction of ``value`` over all ranks.

    Args:
        value: A number, array or tensor; the same shape and type on all ranks.
        name: Name of the operation, the same on all ranks.
        average: Deprecated: True means ``op=Average``, False ``op=Sum``.
        prescale_factor: Factor before the reduction.
        postscale_factor: Factor after it.
        op: Average (default), Sum, Adasum, Min, Max or Product.
        compression: How it travels.

    Raises:
        ValueError: It is refused.
        HorovodInternalError: The operation failed on all ranks, or a rank died.
    """
    return operations.allreduce(
        tf.convert_to_tensor(value),
        average=average,
        compression=compression,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name,
    )


def allgather(value: Any, name: str | None = None) -> Any:
    """**Collective.** Return the ranks' values one after the other, along the first dimension.

    Arguments and errors as ``allreduce``; the first dimension may differ.
    """
    return operations.allgather(tf.convert_to_tensor(value), name=name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """**Collective.** Return root's ``value``; arguments and errors as ``allreduce``."""
    return operations.broadcast(tf.convert_to_tensor(value), root_rank, name=name)


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """**Collective.** Return this rank's part of the reduction of ``value``, cut along its rows.

    Arguments and errors as ``allreduce``; ``op`` is Average or Sum.
    """
    return operations.reducescatter(tf.convert_to_tensor(value), op=op, name=name)
