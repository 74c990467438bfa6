"""Broadcasts of variables and of objects."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from keras_training import model

import horovod.tensorflow as hvd
import tensorflow as tf

TYPES = (
    "float32",
    "float16",
    "bfloat16",
    "float64",
    "int32",
    "int64",
    "uint8",
    "bool",
    "complex64",
)


@pytest.mark.parametrize("traced", [True, False], ids=["graph", "eager"])
def test_variables_become_roots(traced: bool, rank: int, size: int) -> None:
    net, root = model(rank), size - 1

    def broadcast() -> None:
        hvd.broadcast_variables(net.variables, root_rank=root)

    (tf.function(broadcast) if traced else broadcast)()
    for weight, right in zip(net.get_weights(), model(root).get_weights(), strict=True):
        assert np.array_equal(weight, right)


@pytest.mark.parametrize("dtype", TYPES)
def test_variables_of_any_type_travel(dtype: str, rank: int) -> None:
    variables = [tf.Variable(tf.cast([rank, 1, 0], dtype)), tf.Variable(tf.cast(rank, dtype))]
    hvd.broadcast_variables(variables, 0)
    assert np.array_equal(variables[0].numpy(), tf.cast([0, 1, 0], dtype).numpy())
    assert variables[1].numpy() == tf.cast(0, dtype).numpy()


def test_an_optimizers_state_becomes_roots(rank: int) -> None:
    net, optimizer = model(), tf.keras.optimizers.Adam(0.1 * (rank + 1))
    optimizer.build(net.trainable_variables)
    hvd.broadcast_variables(optimizer.variables, root_rank=0)
    assert float(optimizer.learning_rate.numpy()) == pytest.approx(0.1)


def test_other_variables_on_other_ranks_are_one_sentence_on_all(two_ranks: None, rank: int) -> None:
    with pytest.raises(ValueError, match="got 2 on rank 0 and 1 on rank 1"):
        hvd.broadcast_variables([tf.Variable(0.0)] * (2 - min(rank, 1)), 0)
    with pytest.raises(ValueError, match=r"Variable \(1,\) float32 on rank 0 and"):
        hvd.broadcast_variables([tf.Variable([0.0] * (1 + rank))], 0)
    assert hvd.broadcast_object(rank) == 0  # and the engine goes on


def test_objects_travel(rank: int, size: int) -> None:
    root = size - 1
    assert hvd.broadcast_object({"epoch": rank}, root_rank=root) == {"epoch": root}
    assert hvd.broadcast_object_fn(root_rank=root)(rank) == root
    gathered = hvd.allgather_object({"rank": rank, "text": "x" * rank * 1000})
    assert [each["rank"] for each in gathered] == list(range(size))
    assert [len(each["text"]) for each in gathered] == [1000 * r for r in range(size)]


def test_sessions_are_one_sentence() -> None:
    calls = [
        lambda: hvd.BroadcastGlobalVariablesHook(0),
        lambda: hvd.broadcast_object(1, session="session"),
        lambda: hvd.allgather_object(1, session="session"),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="sessions of TensorFlow 1 are not served"):
            call()


def test_variables_of_a_sessions_graph_become_roots(rank: int) -> None:
    with pytest.raises(RuntimeError, match="a TensorFlow 1 session knows what all variables are"):
        hvd.broadcast_global_variables(0)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("v", initializer=1.0 + rank)
        with tf.GradientTape() as tape:
            value = variable * float(rank)
        gradient = hvd.DistributedGradientTape(tape, op=hvd.Max).gradient(value, variable)
        broadcast = hvd.broadcast_global_variables(0)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(broadcast)
        assert session.run(variable) == 1.0
        assert session.run(gradient) == hvd.size() - 1


@pytest.mark.parametrize("traced", [True, False], ids=["graph", "eager"])
@pytest.mark.parametrize("late", [True, False])
def test_weights_that_nobody_has_broadcast_are_named(
    two_ranks: None, traced: bool, late: bool, rank: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A broadcast after the first step, as in Horovod's own examples, is early enough."""
    net, optimizer = model(rank), tf.keras.optimizers.SGD(0.01)
    x = tf.ones((4, 9))

    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(net(x)))
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, net.trainable_variables)
        optimizer.apply_gradients(zip(gradients, net.trainable_variables, strict=True))

    run = tf.function(step) if traced else step
    caplog.set_level(logging.WARNING, logger="horovod")
    for i in range(4):
        run()
        if late and i == 0:
            hvd.broadcast_variables(net.variables, root_rank=0)
    found = [each.message for each in caplog.records if "weights differ" in each.message]
    assert len(found) == (rank == 0 and not late)
    if found:
        assert "dense/kernel and 5 more (ranks 0 and 1)" in found[0]
