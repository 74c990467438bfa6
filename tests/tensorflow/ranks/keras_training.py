"""A small model and its data, for tests that compare n ranks with one process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import horovod.tensorflow as hvd
import tensorflow as tf

BATCH = 24  # divisible by 1, 2 and 4 ranks
STEPS = 8
IS_LEGACY = not hasattr(tf.keras, "ops")
"""These are tf-keras's optimizers and models."""
MeanSquaredError = tf.keras.losses.MeanSquaredError
"""As an object: Keras 3 does not read "mse" back from a .h5 file."""
Weights = list[np.ndarray]


def data(steps: int = STEPS) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs (steps * BATCH, 9) and targets (steps * BATCH, 3)."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(steps * BATCH, 9)).astype(np.float32)
    return x, np.tanh(x[:, :3] * 2).astype(np.float32)


def shard(values: np.ndarray) -> np.ndarray:
    """Return this rank's rows of every batch, one batch after the other."""
    length = BATCH // hvd.size()
    batches = values.reshape(-1, BATCH, *values.shape[1:])
    rows = batches[:, hvd.rank() * length : (hvd.rank() + 1) * length]
    return rows.reshape(-1, *values.shape[1:])


def model(seed: int = 7) -> Any:
    net = tf.keras.Sequential(
        [
            tf.keras.layers.Input((9,)),
            tf.keras.layers.Dense(16, activation="tanh"),
            tf.keras.layers.Dense(16, activation="tanh"),
            tf.keras.layers.Dense(3),
        ]
    )
    rng = np.random.default_rng(seed)
    net.set_weights([rng.normal(size=w.shape, scale=0.3) for w in net.get_weights()])
    return net


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: tf.keras.optimizers.SGD(0.05, momentum=0.9),
    "adam": lambda: tf.keras.optimizers.Adam(0.01),
    "adam_clipped": lambda: tf.keras.optimizers.Adam(0.01, global_clipnorm=0.1),
}


@functools.cache
def fit_whole(make: str, epochs: int = 2) -> Weights:
    """Return the weights after one process was trained on whole batches."""
    net, (x, y) = model(), data()
    net.compile(OPTIMIZERS[make](), MeanSquaredError())
    net.fit(x, y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0)
    return list(net.get_weights())


def fit_shards(
    optimizer: Any, epochs: int = 2, net: Any = None, callbacks: Any = (), **options: Any
) -> Weights:
    """Return the weights after this rank was trained on its shards."""
    net = model() if net is None else net
    x, y = (shard(values) for values in data())
    net.compile(optimizer, MeanSquaredError(), **options)
    length = BATCH // hvd.size()
    net.fit(
        x, y, batch_size=length, epochs=epochs, shuffle=False, verbose=0, callbacks=list(callbacks)
    )
    return list(net.get_weights())


def assert_same(ours: Weights, right: Weights, tolerance: float = 1e-6) -> None:
    assert len(ours) == len(right)
    for weight, other in zip(ours, right, strict=True):
        assert np.abs(weight - other).max() < tolerance


def assert_equal_on_all_ranks(weights: Weights) -> None:
    everybodys = hvd.allgather_object([weight.tobytes() for weight in weights])
    assert all(each == everybodys[0] for each in everybodys)
