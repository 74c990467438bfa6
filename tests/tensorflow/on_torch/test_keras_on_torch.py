"""``horovod.keras`` where Keras calculates with PyTorch: the same ``apply``, and no TensorFlow."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import torch

import horovod.keras as hvd
from horovod.common import basics
from horovod.common.objects import allgather_object

BATCH = 24
STEPS = 8
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "adam_clipped": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.1),
}


def model(seed: int = 7) -> Any:
    net = keras.Sequential(
        [
            keras.layers.Input((9,)),
            keras.layers.Dense(16, activation="tanh"),
            keras.layers.Dense(3),
        ]
    )
    rng = np.random.default_rng(seed)
    net.set_weights([rng.normal(size=w.shape, scale=0.3) for w in net.get_weights()])
    return net


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(STEPS * BATCH, 9)).astype(np.float32)
    return x, np.tanh(x[:, :3] * 2).astype(np.float32)


def shard(values: np.ndarray) -> np.ndarray:
    length = BATCH // hvd.size()
    rows = values.reshape(-1, BATCH, *values.shape[1:])
    rows = rows[:, hvd.rank() * length : (hvd.rank() + 1) * length]
    return rows.reshape(-1, *values.shape[1:])


def fit_whole(optimizer: Any, batch: int = BATCH) -> list[np.ndarray]:
    net, (x, y) = model(), data()
    net.compile(optimizer, "mse")
    net.fit(x, y, batch_size=batch, epochs=2, shuffle=False, verbose=0)
    return list(net.get_weights())


def fit_shards(optimizer: Any, net: Any = None, callbacks: Any = ()) -> list[np.ndarray]:
    net = model() if net is None else net
    x, y = (shard(values) for values in data())
    net.compile(optimizer, "mse")
    length = BATCH // hvd.size()
    net.fit(x, y, batch_size=length, epochs=2, shuffle=False, verbose=0, callbacks=list(callbacks))
    return list(net.get_weights())


def assert_same(ours: list[np.ndarray], right: list[np.ndarray]) -> None:
    for weight, other in zip(ours, right, strict=True):
        assert np.abs(weight - other).max() < 1e-6


def assert_equal_on_all_ranks(weights: list[np.ndarray]) -> None:
    everybodys = allgather_object([weight.tobytes() for weight in weights])
    assert all(each == everybodys[0] for each in everybodys)


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_shards_give_the_weights_of_the_whole_batch(make: str) -> None:
    ours = fit_shards(hvd.DistributedOptimizer(OPTIMIZERS[make]()))
    assert_same(ours, fit_whole(OPTIMIZERS[make]()))
    assert_equal_on_all_ranks(ours)


@pytest.mark.parametrize("options", [{"groups": 2}, {"gradient_predivide_factor": 2.0}])
def test_options_change_no_weight(options: dict[str, Any]) -> None:
    make = OPTIMIZERS["sgd"]
    assert_same(fit_shards(hvd.DistributedOptimizer(make(), **options)), fit_whole(make()))


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_accumulated_passes_are_one_step_of_a_larger_batch(make: str) -> None:
    optimizer = hvd.DistributedOptimizer(
        OPTIMIZERS[make](), backward_passes_per_step=2, average_aggregated_gradients=True
    )
    assert_same(fit_shards(optimizer), fit_whole(OPTIMIZERS[make](), 2 * BATCH))
    assert int(optimizer.iterations.numpy()) == STEPS


def test_weights_and_state_are_roots_from_the_first_step_on() -> None:
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
    ]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05 + hvd.rank(), momentum=0.9))
    ours = fit_shards(optimizer, model(7 + hvd.rank()), callbacks)
    assert_same(ours, fit_whole(OPTIMIZERS["sgd"]()))


def test_weights_that_nobody_has_broadcast_are_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="horovod")
    fit_shards(hvd.DistributedOptimizer(OPTIMIZERS["sgd"]()), model(hvd.rank()))
    found = [each.message for each in caplog.records if "weights differ" in each.message]
    assert len(found) == (hvd.rank() == 0 and hvd.size() > 1)


def test_a_step_ends_with_every_update() -> None:
    hvd.shutdown()
    hvd.init()
    fit_shards(hvd.DistributedOptimizer(OPTIMIZERS["sgd"]()))
    records, _ = basics.engine().drain_steps()
    assert sum(record.count for record in records) == 2 * STEPS


def test_an_overflow_on_one_rank_skips_the_step_on_all() -> None:
    net = model()
    scaling = keras.optimizers.LossScaleOptimizer
    net.compile(scaling(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))), "mse")
    x, y = (values[:BATCH].copy() for values in data())
    net.fit(x, y, batch_size=BATCH, verbose=0)
    before = net.get_weights()
    if hvd.rank() == hvd.size() - 1:
        x[:] = np.inf
    net.fit(x, y, batch_size=BATCH, verbose=0)
    assert_same(net.get_weights(), before)
    assert_equal_on_all_ranks(net.get_weights())


def test_a_saved_model_is_loaded_without_horovod_and_with_it(tmp_path: Path) -> None:
    net = model()
    fit_shards(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), net)
    net.save(tmp_path / "model.keras")
    plain = keras.models.load_model(tmp_path / "model.keras")
    assert type(plain.optimizer) is type(keras.optimizers.Adam())
    loaded = hvd.load_model(tmp_path / "model.keras")
    assert int(loaded.optimizer.iterations.numpy()) == int(net.optimizer.iterations.numpy())
    assert_same(fit_shards(loaded.optimizer, loaded), fit_shards(net.optimizer, net))


def test_values_are_reduced_gathered_and_sent() -> None:
    size, rank = hvd.size(), hvd.rank()
    assert float(hvd.allreduce(torch.tensor(float(rank)))) == (size - 1) / 2
    assert hvd.allgather(np.array([rank])).tolist() == list(range(size))
    assert hvd.broadcast([1.0 + rank], root_rank=size - 1).tolist() == [float(size)]
    assert hvd.reducescatter(np.ones(size), op=hvd.Sum).tolist() == [float(size)]


def test_nothing_needs_tensorflow() -> None:
    assert sys.modules["tensorflow"] is None  # see conftest
    assert "horovod.tensorflow" not in sys.modules
