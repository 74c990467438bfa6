"""``hvd.DistributedOptimizer`` of ``horovod.tensorflow``: for the optimizers of ``tf.keras``."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from horovod._keras import api
from horovod.common.process_set import ProcessSet, global_process_set
from horovod.common.reduce_ops import Average
from horovod.tensorflow import keras_support as _keras_support  # noqa: F401
from horovod.tensorflow.compression import Compression, Compressor

__all__ = ["DistributedOptimizer"]


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """**Local**, every rank alike. Return ``optimizer`` with gradients that are reduced.

    Args:
        optimizer: Of ``tf.keras.optimizers``.
        name: Accepted for compatibility: the optimizer keeps its name.
        use_locking: Accepted for compatibility.
        device_dense: Accepted for compatibility; tensors stay where they are.
        device_sparse: As ``device_dense``.
        compression: How dense gradients travel.
        sparse_as_dense: Reduce sparse gradients as dense ones; else their rows are gathered.
        backward_passes_per_step: Passes whose gradients are summed locally per reduction.
        op: Average, Sum, Min, Max or Product.
        gradient_predivide_factor: With Average: divide by it before the sum, by size / it after.
        average_aggregated_gradients: Divide the sum of the passes by their number.
        num_groups: Older name of ``groups`` as a number.
        groups: Gradients that are reduced together: a number of groups, or lists of variables.
        process_set: Ranks that train together; on other ranks gradients stay as they are.
        scale_local_gradients: Divide gradients of local variables by the number of ranks.

    Raises:
        ValueError: An argument is unsuitable, or the optimizer is one of TensorFlow 1.
    """
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        raise ValueError(
            "DistributedOptimizer: optimizers of TensorFlow 1 (tf.compat.v1.train) are not served; "
            "pass one of tf.keras.optimizers"
        )
    return api.DistributedOptimizer(
        optimizer,
        name,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
