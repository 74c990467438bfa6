"""DistributedGradientTape, in eager loops and in functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from keras_training import (
    BATCH,
    STEPS,
    assert_equal_on_all_ranks,
    assert_same,
    data,
    model,
    shard,
)

import horovod.tensorflow as hvd
import tensorflow as tf

Step = Callable[[Any, Any], None]


def step_of(net: Any, optimizer: Any, wrap: Callable[[Any], Any]) -> Step:
    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(net(x, training=True) - y))
        gradients = wrap(tape).gradient(loss, net.trainable_variables)
        optimizer.apply_gradients(zip(gradients, net.trainable_variables, strict=True))

    return step


def train(step: Step, x: np.ndarray, y: np.ndarray) -> None:
    for rows, targets in zip(np.split(x, STEPS), np.split(y, STEPS), strict=True):
        step(tf.constant(rows), tf.constant(targets))


def train_whole() -> list[np.ndarray]:
    net = model()
    train(step_of(net, tf.keras.optimizers.Adam(0.01), lambda tape: tape), *data())
    return list(net.get_weights())


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "groups": {"groups": 2},
    "predivided": {"gradient_predivide_factor": 2.0},
}


@pytest.mark.parametrize("traced", [True, False], ids=["graph", "eager"])
@pytest.mark.parametrize("options", OPTIONS)
def test_shards_give_the_weights_of_the_whole_batch(options: str, traced: bool) -> None:
    net = model()
    step = step_of(
        net,
        tf.keras.optimizers.Adam(0.01),
        lambda tape: hvd.DistributedGradientTape(tape, **OPTIONS[options]),
    )
    train(tf.function(step) if traced else step, *(shard(values) for values in data()))
    assert_same(net.get_weights(), train_whole())
    assert_equal_on_all_ranks(net.get_weights())


def test_a_tape_that_is_wrapped_first_records() -> None:
    variable = tf.Variable([1.0, 2.0])
    with hvd.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
        value = tf.reduce_sum(variable * variable) * float(hvd.rank() + 1)
    middle = (hvd.size() + 1) / 2
    for _ in range(2):
        assert np.allclose(tape.gradient(value, variable), [2 * middle, 4 * middle])
    assert np.allclose(tape.gradient(value, {"v": variable})["v"], [2 * middle, 4 * middle])


@pytest.mark.parametrize("traced", [True, False], ids=["graph", "eager"])
@pytest.mark.parametrize(
    ("op", "right"),
    [
        ("Average", lambda size: (size + 1) / 2),
        ("Sum", lambda size: size * (size + 1) / 2),
        ("Min", lambda size: 1.0),
        ("Max", lambda size: float(size)),
    ],
)
def test_gradients_are_combined_as_asked(
    op: str, right: Callable[[int], float], traced: bool, size: int
) -> None:
    variable = tf.Variable([1.0, 1.0])

    def gradient() -> Any:
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(variable) * float(hvd.rank() + 1)
        return hvd.DistributedGradientTape(tape, op=getattr(hvd, op)).gradient(value, [variable])[0]

    found = tf.function(gradient)() if traced else gradient()
    assert np.allclose(found, right(size))


@pytest.mark.parametrize("traced", [True, False], ids=["graph", "eager"])
def test_two_tapes_of_one_step_do_not_meet(traced: bool) -> None:
    """As of a GAN: two nets whose weights have the same names, and one of them twice."""
    nets = [model(1), model(2)]
    x = tf.constant(data()[0][:BATCH])

    def gradients() -> Any:
        found = []
        for net in (*nets, nets[0]):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(net(x)))
            found.append(hvd.DistributedGradientTape(tape).gradient(loss, net.trainable_variables))
        return found

    first, second, again = tf.function(gradients)() if traced else gradients()
    for one, other in zip(first, again, strict=True):
        assert np.array_equal(one, other)
    assert not np.allclose(first[0], second[0])


def test_what_has_no_gradient_has_none() -> None:
    used, unused = tf.Variable(1.0), tf.Variable(1.0)
    with tf.GradientTape() as tape:
        value = used * 3.0
    found = hvd.DistributedGradientTape(tape).gradient(value, [used, unused])
    assert float(found[0]) == 3.0
    assert found[1] is None


def test_gradients_of_local_layers_stay_on_their_rank(rank: int, size: int) -> None:
    net = model()
    x = tf.constant(shard(data()[0])[: BATCH // size])
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_mean(tf.square(net(x)))
    own = tape.gradient(loss, net.trainable_variables)
    partial = hvd.PartialDistributedGradientTape(tape, local_layers=net.layers[0])
    found = partial.gradient(loss, net.trainable_variables)
    for mine, got in zip(own[:2], found[:2], strict=True):
        assert np.allclose(mine / size, got)
    assert_equal_on_all_ranks([np.asarray(gradient) for gradient in found[2:]])
    pairs = partial.get_local_and_global_gradients(loss, net.trainable_variables)
    assert [len(each) for each in pairs] == [2, 4]
    for (variable, gradient), weight, other in zip(
        [*pairs[0], *pairs[1]], net.trainable_variables, found, strict=True
    ):
        assert variable is weight
        assert np.allclose(gradient, other)
    with pytest.raises(ValueError, match="expected Keras layers, got 'nonsense'"):
        hvd.PartialDistributedGradientTape(tape, local_layers=["nonsense"])


def test_members_of_a_process_set_reduce_among_themselves(
    two_ranks: None, rank: int, size: int
) -> None:
    members = hvd.add_process_set(list(range(0, size, 2)))
    variable = tf.Variable(1.0)
    with tf.GradientTape() as tape:
        value = variable * float(rank)
    found = hvd.DistributedGradientTape(tape, process_set=members).gradient(value, variable)
    right = np.mean(range(0, size, 2)) if rank % 2 == 0 else rank
    assert float(found) == right
    hvd.remove_process_set(members)
    other = tf.Variable(1.0)  # which the ranks name alike, though not all of them were members
    with tf.GradientTape() as tape:
        value = other * float(rank)
    assert float(hvd.DistributedGradientTape(tape).gradient(value, other)) == (size - 1) / 2


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"op": 17}, "op: expected Average"),
        ({"gradient_predivide_factor": 2.0, "op": 1}, "only with op=Average"),
        ({"gradient_predivide_factor": 0.0}, "a number > 0, got 0"),
        ({"groups": 0}, "groups: expected a number > 0"),
        ({"groups": "all"}, "a number or lists of variables"),
    ],
)
def test_a_wrong_argument_is_one_sentence(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        hvd.DistributedGradientTape(tf.GradientTape(), **options)


def test_xla_is_refused_when_a_step_is_traced(two_ranks: None) -> None:
    net = model()
    step = step_of(net, tf.keras.optimizers.SGD(0.1), hvd.DistributedGradientTape)
    x, y = (tf.constant(values[:BATCH]) for values in data())
    with pytest.raises(RuntimeError, match=r"XLA cannot compile communication; pass jit_compile"):
        tf.function(step, jit_compile=True)(x, y)


def test_gradients_travel_short_where_the_parameters_say_so_and_nothing_else_does(
    run, monkeypatch, size
) -> None:
    monkeypatch.setenv("AUTOTUNE_BF16_GRADIENTS", "1")
    hvd.shutdown()
    hvd.init()
    fine = 1 + 2.0**-20
    variable = tf.Variable(tf.ones([1000]))

    def both():
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            total = tf.reduce_sum(variable * fine)
        (gradient,) = tape.gradient(total, [variable])
        return gradient, hvd.allreduce(tf.fill([1000], fine), name="of.the.script")

    gradient, plain = run(both)
    np.testing.assert_array_equal(gradient, np.full(1000, 1.0 if size > 1 else fine, np.float32))
    np.testing.assert_allclose(plain, np.full(1000, fine, np.float32), rtol=1e-7)
    hvd.shutdown()
    monkeypatch.undo()
    hvd.init()
