"""Callbacks of ``fit``."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from keras_training import (
    BATCH,
    IS_LEGACY,
    STEPS,
    assert_equal_on_all_ranks,
    assert_same,
    data,
    fit_shards,
    fit_whole,
    model,
    shard,
)

import horovod.tensorflow.keras as hvd
import tensorflow as tf
from horovod._keras import callbacks as shared
from horovod.common import basics, gradients

SGD = tf.keras.optimizers.SGD
Callback = tf.keras.callbacks.Callback


@pytest.mark.parametrize("steps", [1, STEPS], ids=["a_step", "an_epoch_at_once"])
def test_weights_are_roots_from_the_first_step_on(steps: int, rank: int) -> None:
    """Also where a whole epoch is one execution."""
    net = model(7 + rank)
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    optimizer = hvd.DistributedOptimizer(SGD(0.05 * (rank + 1), momentum=0.9))
    ours = fit_shards(optimizer, net=net, callbacks=[callback], steps_per_execution=steps)
    assert_same(ours, fit_whole("sgd"))
    assert float(optimizer.learning_rate.numpy()) == pytest.approx(0.05)


def test_a_model_that_the_first_step_builds_is_broadcast_after_it(rank: int) -> None:
    net = tf.keras.Sequential([tf.keras.layers.Dense(4), tf.keras.layers.Dense(3)])
    tf.keras.utils.set_random_seed(rank)
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    fit_shards(hvd.DistributedOptimizer(SGD(0.05, momentum=0.9)), net=net, callbacks=[callback])
    assert_equal_on_all_ranks(net.get_weights())


def test_local_variables_stay_as_they_are(rank: int, size: int) -> None:
    net = model(rank)
    net.trainable = False
    local = net.layers[0].variables
    root = size - 1
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(root, local_variables=local)
    callback.set_model(net)
    callback._broadcast()
    assert_same(net.get_weights()[:2], model(rank).get_weights()[:2])
    assert_same(net.get_weights()[2:], model(root).get_weights()[2:])
    with pytest.raises(ValueError, match="expected variables, got 3"):
        hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[3])


def test_metrics_are_averages_for_what_comes_after(rank: int, size: int) -> None:
    logs = {"loss": float(rank), "text": "x", "array": np.float32(2 * rank)}
    if rank == 0:
        logs["val_loss"] = 7.0
    callback = hvd.callbacks.MetricAverageCallback()
    callback.on_epoch_end(0, logs)
    assert logs["loss"] == pytest.approx((size - 1) / 2)
    assert logs["array"] == pytest.approx(size - 1)
    assert logs["text"] == "x"
    assert logs.get("val_loss") == (7.0 if rank == 0 else None)


def test_history_has_the_averages() -> None:
    net = model()
    net.compile(hvd.DistributedOptimizer(SGD(0.05)), "mse")
    x, y = (shard(values) for values in data())
    history = net.fit(
        x, y, epochs=2, verbose=0, callbacks=[hvd.callbacks.MetricAverageCallback()]
    ).history["loss"]
    assert np.allclose(hvd.broadcast(np.array(history), 0), history)


class Rates(Callback):
    def __init__(self) -> None:
        super().__init__()
        self.rates: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.rates.append(float(self.model.optimizer.learning_rate.numpy()))


def rates_with(*callbacks: Any, epochs: int) -> list[float]:
    rates = Rates()
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.5))
    fit_shards(optimizer, epochs, callbacks=[*callbacks, rates])
    return rates.rates


def test_the_learning_rate_warms_up(size: int, capsys: pytest.CaptureFixture[str]) -> None:
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.1 * size, warmup_epochs=2, verbose=1)
    rates = rates_with(warmup, epochs=3)
    right = [
        0.1 * ((k + 1) / STEPS * (size - 1) / 2 + 1) if k < 2 * STEPS else 0.1 * size
        for k in range(3 * STEPS)
    ]
    assert np.allclose(rates, right, rtol=1e-5)
    assert "Epoch 2: finished gradual learning rate warmup" in capsys.readouterr().out


def test_the_learning_rate_follows_its_schedule() -> None:
    constant = hvd.callbacks.LearningRateScheduleCallback(0.5, 0.1, start_epoch=1, end_epoch=2)
    growing = hvd.callbacks.LearningRateScheduleCallback(0.5, lambda epoch: epoch, start_epoch=2)
    rates = rates_with(constant, growing, epochs=4)
    assert np.allclose(np.reshape(rates, (4, STEPS)), [[0.5], [0.05], [1.0], [1.5]], rtol=1e-5)


def test_an_epoch_of_unknown_length_is_one_sentence() -> None:
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.1)
    warmup.set_params({"epochs": 1})
    with pytest.raises(ValueError, match=r"pass steps_per_epoch to it"):
        warmup.on_train_begin()


@pytest.mark.skipif(IS_LEGACY, reason="tf-keras traces momentum also where it runs eagerly")
def test_momentum_is_corrected_where_steps_run_eagerly() -> None:
    seen = []

    class Momenta(Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            seen.append(self.model.optimizer.momentum)

    schedule = hvd.callbacks.LearningRateScheduleCallback(0.1, 0.5)
    optimizer = hvd.DistributedOptimizer(SGD(0.1, momentum=0.8))
    fit_shards(optimizer, 1, callbacks=[schedule, Momenta()], run_eagerly=True)
    assert seen[:2] == [pytest.approx(0.4), 0.8]


def test_momentum_that_cannot_be_corrected_is_said_once(
    rank: int, caplog: pytest.LogCaptureFixture
) -> None:
    shared._said.clear()
    caplog.set_level(logging.WARNING, logger="horovod")
    schedule = hvd.callbacks.LearningRateScheduleCallback(0.1, lambda epoch: 1 / (epoch + 1))
    fit_shards(hvd.DistributedOptimizer(SGD(0.1, momentum=0.8)), 3, callbacks=[schedule])
    said = [each for each in caplog.records if "momentum correction" in each.message]
    assert len(said) == (rank == 0)


def test_the_best_model_is_saved_by_rank_0(rank: int, tmp_path: Path) -> None:
    path = tmp_path / "best.keras"
    checkpoint = hvd.callbacks.BestModelCheckpoint(monitor="loss", filepath=str(path))
    optimizer = hvd.DistributedOptimizer(SGD(0.05))
    weights = fit_shards(optimizer, callbacks=[hvd.callbacks.MetricAverageCallback(), checkpoint])
    assert path.exists() == (rank == 0)
    if rank == 0:
        loaded = tf.keras.models.load_model(path)
        assert type(loaded.optimizer) is SGD
        assert_same(loaded.get_weights(), weights)


def test_compilation_is_switched_off_and_said_once(
    two_ranks: None, rank: int, caplog: pytest.LogCaptureFixture
) -> None:
    shared._said.clear()
    caplog.set_level(logging.WARNING, logger="horovod")
    for _ in range(2):
        optimizer = hvd.DistributedOptimizer(SGD(0.05))
        callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        fit_shards(optimizer, 1, callbacks=[callback], jit_compile=True)
    said = [each for each in caplog.records if "jit_compile" in each.message]
    assert len(said) == (rank == 0)


def test_compilation_without_a_callback_is_one_sentence(two_ranks: None) -> None:
    with pytest.raises(RuntimeError, match="XLA cannot compile communication"):
        fit_shards(hvd.DistributedOptimizer(SGD(0.05)), 1, jit_compile=True)


def test_an_optimizer_that_is_not_wrapped_is_noticed(
    two_ranks: None, rank: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradients._reductions, "exist", False)
    caplog.set_level(logging.WARNING, logger="horovod")
    for _ in range(2):
        fit_shards(SGD(0.05), 1, callbacks=[hvd.callbacks.MetricAverageCallback()])
    said = [each for each in caplog.records if "no gradient is averaged" in each.message]
    assert len(said) == (rank == 0)


def test_the_tuner_pauses_while_the_model_is_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    engine = basics.engine()

    class Noting:
        def __getattr__(self, name: str) -> Any:
            return getattr(engine, name)

        def pause_steps(self, paused: bool) -> None:
            calls.append("pause" if paused else "resume")
            engine.pause_steps(paused)

    class Marks(Callback):
        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            calls.append("batch")

    monkeypatch.setattr(basics.job(), "engine", Noting())
    net = model()
    net.compile(SGD(0.05), "mse")
    x, y = (values[:BATCH] for values in data())
    net.evaluate(
        x, y, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), Marks()]
    )
    assert calls == ["pause", "batch", "resume"]
