"""SyncBatchNormalization: shards on n ranks give what one rank gives on the whole batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from keras_training import IS_LEGACY

import horovod.tensorflow as hvd
import tensorflow as tf

ROWS = 12


def plain() -> Any:
    return tf.keras.layers.BatchNormalization(**({"fused": False} if IS_LEGACY else {}))


def results(layer: Any, x: Any, traced: bool) -> list[np.ndarray]:
    """Return output, gradient by ``x`` and moving statistics."""
    x = tf.constant(x)
    layer.build(tuple(x.shape))
    weights = tf.reshape(tf.range(tf.size(x), dtype=tf.float32), x.shape) % 7.0

    def run() -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = layer(x, training=True)
            loss = tf.reduce_sum(output * weights)
        return output, tape.gradient(loss, x)

    output, gradient = (tf.function(run) if traced else run)()
    moving = [layer.moving_mean, layer.moving_variance]
    return [np.asarray(each) for each in (output, gradient, *moving)]


@pytest.mark.parametrize("traced", [True, False], ids=["graph", "eager"])
@pytest.mark.parametrize("shape", [(3,), (4, 4, 3)], ids=["rows", "images"])
def test_shards_give_the_statistics_of_the_whole_batch(
    shape: tuple[int, ...], traced: bool, rank: int, size: int
) -> None:
    whole = np.random.default_rng(1).normal(2.0, 3.0, (ROWS, *shape)).astype(np.float32)
    right = results(plain(), whole, traced)
    cut = slice(rank * ROWS // size, (rank + 1) * ROWS // size)
    ours = results(hvd.SyncBatchNormalization(), whole[cut], traced)
    assert np.allclose(ours[0], right[0][cut], atol=1e-5)
    assert np.allclose(ours[2], right[2], atol=1e-5)
    assert np.allclose(ours[3], right[3], atol=1e-4)


def test_gradients_go_through_the_other_ranks(rank: int, size: int) -> None:
    whole = np.random.default_rng(1).normal(size=(ROWS, 3)).astype(np.float32)
    weights = np.random.default_rng(2).normal(size=(ROWS, 3)).astype(np.float32)
    cut = slice(rank * ROWS // size, (rank + 1) * ROWS // size)

    def gradient(layer: Any, rows: Any, factors: Any) -> Any:
        x = tf.constant(rows)
        layer.build(tuple(x.shape))
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(layer(x, training=True) * factors)
        return tape.gradient(loss, x).numpy()

    right = gradient(plain(), whole, weights)[cut]
    ours = gradient(hvd.SyncBatchNormalization(), whole[cut], weights[cut])
    assert np.allclose(ours, right, atol=1e-5)


def test_unequal_batches_count_by_their_length(two_ranks: None, rank: int, size: int) -> None:
    whole = np.random.default_rng(3).normal(size=(ROWS, 3)).astype(np.float32)
    first = ROWS - 2 * (size - 1)
    cut = slice(0, first) if rank == 0 else slice(first + 2 * (rank - 1), first + 2 * rank)
    right = results(plain(), whole, False)
    ours = results(hvd.SyncBatchNormalization(), whole[cut], False)
    assert np.allclose(ours[0], right[0][cut], atol=1e-5)
    assert np.allclose(ours[2], right[2], atol=1e-6)


def test_evaluation_is_local(rank: int) -> None:
    layer = hvd.SyncBatchNormalization()
    if rank == 0:
        assert np.allclose(layer(tf.ones((2, 3)), training=False), 1.0, atol=1e-3)


def test_the_fused_form_is_one_sentence() -> None:
    with pytest.raises(ValueError, match="fused=True is not supported"):
        hvd.SyncBatchNormalization(fused=True)
    hvd.SyncBatchNormalization(axis=1, fused=False)
