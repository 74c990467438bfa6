"""Batch normalisation over the batches of all ranks.

Per channel: ``n`` values with mean ``m`` and variance ``v`` on each rank give ``N = sum(n)``,
``M = sum(n m) / N`` and ``V = sum(n (v + m^2)) / N - M^2`` over all ranks: one allreduce of
``(n, n m, n (v + m^2))`` in float64, whose gradient TensorFlow knows.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from horovod.common.gradients import next_number
from horovod.common.process_set import ProcessSet, global_process_set
from horovod.common.reduce_ops import Sum
from horovod.tensorflow import operations
from horovod.tensorflow.tracing import as_it_stands, refuse_xla, unique_label

__all__ = ["SyncBatchNormalization"]


class SyncBatchNormalization(tf.keras.layers.BatchNormalization):  # type: ignore[misc]
    """``tf.keras.layers.BatchNormalization`` whose batch is that of all ranks together.

    In evaluation, or with one rank, it is that layer. Batches may differ in length.

    Args:
        fused: False or None: the fused form cannot be synchronised.
        process_set: Ranks whose batches belong together; other ranks normalise by themselves.
        **arguments: Of the layer.

    Raises:
        ValueError: ``fused`` is true.
    """

    def __init__(
        self,
        *positional: Any,
        fused: bool | None = False,
        process_set: ProcessSet = global_process_set,
        **arguments: Any,
    ) -> None:
        if fused:
            raise ValueError("SyncBatchNormalization: fused=True is not supported; leave it out")
        if hasattr(tf.keras.layers.BatchNormalization, "_fused_can_be_used"):
            arguments["fused"] = False  # tf-keras, which takes the fused form by itself
        super().__init__(*positional, **arguments)
        self._process_set = process_set
        self._label = f"sync_batch_norm.{next_number('sync_batch_norm', process_set)}"

    @as_it_stands
    def _moments(self, inputs: Any, *arguments: Any, **named: Any) -> tuple[Any, Any]:
        """**Collective.** Return mean and variance of each channel over all ranks' batches."""
        mean, variance = super()._moments(inputs, *arguments, **named)
        members = self._process_set
        if not members.included() or members.size() == 1:
            return mean, variance
        refuse_xla("hvd.SyncBatchNormalization")
        mask = named.get("mask", arguments[-1] if arguments else None)
        count = _values_per_channel(inputs, mean, mask if tf.is_tensor(mask) else None)
        wide_mean, wide_variance = tf.cast(mean, tf.float64), tf.cast(variance, tf.float64)
        flat_mean = tf.reshape(wide_mean, [-1])
        squares = tf.reshape(wide_variance + tf.square(wide_mean), [-1])
        parts = [tf.math.multiply_no_nan(each, count) for each in (flat_mean, squares)]
        own = tf.concat([[count], *parts], 0)  # an empty batch has no mean
        name = unique_label(self._label)
        total = operations.allreduce(
            own, op=Sum, name=name, process_set=members, ignore_name_scope=True
        )
        sums = tf.reshape(total[1:] / total[0], [2, -1])
        common = sums[0]
        spread = tf.maximum(sums[1] - tf.square(common), 0.0)
        return (
            tf.cast(tf.reshape(common, tf.shape(mean)), mean.dtype),
            tf.cast(tf.reshape(spread, tf.shape(variance)), variance.dtype),
        )


def _values_per_channel(inputs: Any, mean: Any, mask: Any) -> Any:
    """Return how many values of each channel there are on this rank, in float64."""
    if mask is None:
        return tf.cast(tf.size(inputs), tf.float64) / tf.cast(tf.size(mean), tf.float64)
    each = tf.size(inputs) / (tf.size(mask) * tf.size(mean))
    return tf.reduce_sum(tf.cast(mask, tf.float64)) * tf.cast(each, tf.float64)
