"""torch and TensorFlow communicate in one process, side by side."""

from __future__ import annotations

import pytest

import horovod.tensorflow as hvd
import tensorflow as tf

torch = pytest.importorskip("torch")


def test_operations_of_both_do_not_meet(rank: int, size: int) -> None:
    import horovod.torch as hvd_torch

    step = tf.function(lambda own: hvd.allreduce(own, op=hvd.Sum, name="same name in both"))
    for _ in range(20):
        handle = hvd_torch.allreduce_async(torch.ones(5), op=hvd_torch.Sum)
        unnamed = hvd.allreduce(tf.ones([5]), op=hvd.Sum)
        named = step(tf.ones([5]))
        last = hvd_torch.allreduce(torch.ones(5), op=hvd_torch.Sum, name="same name in both")
        results = [hvd_torch.synchronize(handle), unnamed, named, last]
        assert all(float(each[4]) == size for each in results), results
    assert hvd_torch.rank() == rank
