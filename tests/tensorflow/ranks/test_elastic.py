"""Elastic states of variables and models; ``shutdown`` and ``init`` are a reset."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
import tensorflow as tf
from horovod.common import rounds
from horovod.elastic.termination import termination


def made_model(value: float) -> Any:
    model = tf.keras.Sequential([tf.keras.layers.Dense(2)])
    model.build((None, 3))
    model.set_weights([np.full((3, 2), value, np.float32), np.full(2, value, np.float32)])
    return model


def test_variables_and_objects_are_rank_0s_after_sync_and_restored(rank: int) -> None:
    variables = [tf.Variable(np.full(3, rank, np.float64)), tf.Variable(rank)]
    state = hvd.elastic.TensorFlowState(variables, batch=rank, seen=[rank])
    state.sync()
    for _ in range(2):
        assert [v.numpy().tolist() for v in variables] == [[0.0] * 3, 0]
        assert (state.batch, state.seen) == (0, [0])
        variables[0].assign([5.0] * 3)
        state.batch = 7
        state.seen.append(1)
        state.restore()
    variables[1].assign(4)
    state.commit()
    variables[1].assign(5)
    state.restore()
    assert variables[1].numpy() == 4


def test_wrong_arguments_are_one_sentence() -> None:
    with pytest.raises(ValueError, match="expected variables"):
        hvd.elastic.TensorFlowState()
    with pytest.raises(RuntimeError, match="sessions"):
        hvd.elastic.TensorFlowState([], session=object())


@pytest.mark.parametrize("kind", ["TensorFlowKerasState", "KerasState"])
def test_a_model_and_its_optimizer_are_restored(kind: str, rank: int) -> None:
    elastic: Any = hvd.elastic if kind == "TensorFlowKerasState" else hvd_keras.elastic
    model = made_model(float(rank))
    optimizer = tf.keras.optimizers.Adam(0.1)
    state = getattr(elastic, kind)(model, optimizer, batch=rank)
    state.sync()

    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(tf.ones((1, 3))) ** 2) + model.weights[1][0]
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    results = []
    for _ in range(3):
        for _ in range(2):
            step()
        results.append([w.copy() for w in model.get_weights()])
        state.restore()
        assert all(np.all(w == 0) for w in model.get_weights())
    for other in results[1:]:
        for ours, theirs in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_fit_goes_on_after_an_interruption(rank: int, size: int) -> None:
    """By the callbacks: the epochs that were are not done again."""
    model = made_model(0.5)
    model.compile(
        optimizer=hvd_keras.DistributedOptimizer(tf.keras.optimizers.SGD(0.01)), loss="mse"
    )
    x, y = np.ones((8, 3), np.float32), np.ones((8, 2), np.float32)
    state = hvd_keras.elastic.KerasState(model, batch=0, epoch=0)
    epochs: list[int] = []

    class Interrupt(tf.keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
            epochs.append(state.epoch)
            if len(epochs) == 3:
                raise hvd.HostsUpdatedInterrupt(False)

    @hvd_keras.elastic.run
    def train(state: Any) -> None:
        callbacks = [
            Interrupt(),
            hvd_keras.elastic.UpdateBatchStateCallback(state),
            hvd_keras.elastic.UpdateEpochStateCallback(state),
            hvd_keras.elastic.CommitStateCallback(state, batches_per_commit=2),
        ]
        state.model.fit(
            x,
            y,
            batch_size=2,
            epochs=4 - state.epoch,
            callbacks=callbacks,
            verbose=0,
            shuffle=False,
        )

    train(state)
    assert epochs == [0, 1, 2, 2, 3]
    assert (state.epoch, state.batch, state._commit_number) == (4, 0, 3 * 4)
    for theirs in hvd.allgather_object(model.get_weights()):
        for ours, other in zip(model.get_weights(), theirs, strict=True):
            np.testing.assert_array_equal(ours, other)


def test_an_operation_that_fails_is_a_failure_of_the_job(
    two_ranks: None, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    @hvd.elastic.run
    def train(state: Any) -> int:
        calls.append(1)
        if len(calls) == 1:
            hvd.allreduce(tf.ones(2 + rank), name="of other shapes")
        return int(hvd.allreduce(tf.constant(1), op=hvd.Sum))

    from horovod.elastic import loop

    class Driver:
        def is_elastic(self) -> bool:
            return True

        def __getattr__(self, name: str) -> Any:
            return getattr(rounds, name)

    monkeypatch.setattr(loop, "rounds", Driver())
    assert train(hvd.elastic.TensorFlowState([tf.Variable(1.0)])) == hvd.size()
    assert len(calls) == 2
    assert not rounds.is_elastic()


def test_all_ranks_end_at_the_commit_after_one_was_told_to(
    rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    @hvd.elastic.run
    def train(state: Any) -> None:
        while True:
            state.batch += 1
            if state.batch == 2 and rank == size - 1:
                monkeypatch.setattr(termination, "is_requested", True)
            state.commit()

    state = hvd.elastic.TensorFlowState([tf.Variable(1.0)], batch=0)
    with pytest.raises(SystemExit):
        train(state)
    assert hvd.allgather_object(state.batch) == [2] * size
