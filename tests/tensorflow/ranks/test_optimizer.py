"""What a wrapped optimizer is besides: its class, its state, files of models, loss scaling."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from keras_training import (
    BATCH,
    IS_LEGACY,
    assert_equal_on_all_ranks,
    assert_same,
    data,
    fit_shards,
    fit_whole,
    model,
)

import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
import tensorflow as tf

Adam = tf.keras.optimizers.Adam
SUFFIXES = (".keras", ".h5")


def test_a_wrapped_optimizer_is_one_of_its_class_and_has_its_state() -> None:
    plain = Adam(0.01)
    plain.build(model().trainable_variables)
    plain.iterations.assign(5)
    wrapped = hvd.DistributedOptimizer(plain)
    assert isinstance(wrapped, Adam)
    assert int(wrapped.iterations) == 5
    assert wrapped.get_config() == plain.get_config()
    with pytest.raises(ValueError, match="wrapped already"):
        hvd.DistributedOptimizer(wrapped)


def test_a_copy_from_its_configuration_is_wrapped_too() -> None:
    wrapped = hvd.DistributedOptimizer(Adam(0.01))
    copy = wrapped.from_config(wrapped.get_config())
    assert copy.get_config() == wrapped.get_config()
    assert_same(fit_shards(copy), fit_whole("adam"))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_saved_model_is_loaded_without_horovod_and_with_it(
    suffix: str, tmp_path: Path, rank: int
) -> None:
    net = model()
    fit_shards(hvd.DistributedOptimizer(Adam(0.01)), net=net)
    path = tmp_path / f"model{suffix}"
    net.save(path)
    plain = tf.keras.models.load_model(path)
    assert type(plain.optimizer) is Adam
    assert_same(plain.get_weights(), net.get_weights())
    loaded = hvd_keras.load_model(path)
    assert int(loaded.optimizer.iterations) == int(net.optimizer.iterations)
    if suffix == ".h5" and not IS_LEGACY:
        return  # Keras 3 cannot go on with it: its optimizer knows no variables, plain or not
    x, y = data()
    length = BATCH // hvd.size()
    for each in (net, loaded):
        rows = slice(rank * length, (rank + 1) * length)
        each.fit(x[rows], y[rows], batch_size=length, verbose=0)
    assert_same(loaded.get_weights(), net.get_weights())
    assert_equal_on_all_ranks(loaded.get_weights())


class MyAdam(Adam):
    pass


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_custom_optimizer_is_loaded(suffix: str, tmp_path: Path) -> None:
    net = model()
    fit_shards(hvd.DistributedOptimizer(MyAdam(0.01)), net=net)
    path = tmp_path / f"model{suffix}"
    net.save(path)
    loaded = hvd_keras.load_model(path, custom_optimizers=[MyAdam])
    assert isinstance(loaded.optimizer, MyAdam)
    assert int(loaded.optimizer.iterations) == int(net.optimizer.iterations)


def test_what_keras_registers_by_a_name_of_its_own_is_loaded_without_horovod(
    tmp_path: Path,
) -> None:
    register = tf.keras.utils.register_keras_serializable("package", "name")
    registered = register(type("Registered", (Adam,), {}))
    net = model()
    fit_shards(hvd.DistributedOptimizer(registered(0.01)), net=net)
    net.save(tmp_path / "model.keras")
    loaded = tf.keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is registered


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: hvd.DistributedOptimizer(Adam(), op=hvd.Adasum), "Adasum is not supported"),
        (lambda: hvd.DistributedOptimizer("adam"), "expected an optimizer of Keras"),
        (
            lambda: hvd.DistributedOptimizer(Adam(), backward_passes_per_step=0),
            "a whole number > 0, got 0",
        ),
        (
            lambda: hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1)),
            "optimizers of TensorFlow 1",
        ),
    ],
)
def test_a_wrong_use_is_one_sentence(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()


def scaled(wrap: str) -> Any:
    """Return an optimizer that scales the loss, within or around the wrapped one."""
    scaling = tf.keras.mixed_precision.LossScaleOptimizer
    if wrap == "within":
        return scaling(hvd.DistributedOptimizer(Adam(0.01)))
    return hvd.DistributedOptimizer(scaling(Adam(0.01)))


@pytest.mark.parametrize("wrap", ["within", "around"])
def test_loss_scaling_gives_the_weights_of_the_whole_batch(wrap: str) -> None:
    assert_same(fit_shards(scaled(wrap)), fit_whole("adam"))


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "graph"])
@pytest.mark.parametrize("wrap", ["within", "around"])
def test_an_overflow_on_one_rank_skips_the_step_on_all(
    two_ranks: None, wrap: str, eager: bool, rank: int, size: int
) -> None:
    net, optimizer = model(), scaled(wrap)
    net.compile(optimizer, "mse", run_eagerly=eager)
    x, y = (values[:BATCH].copy() for values in data())
    net.fit(x, y, batch_size=BATCH, verbose=0)
    before = net.get_weights()
    if rank == size - 1:
        x[:] = np.inf
    net.fit(x, y, batch_size=BATCH, verbose=0)
    assert_same(net.get_weights(), before)
    net.fit(*(values[:BATCH] for values in data()), batch_size=BATCH, verbose=0)
    assert np.isfinite(net.get_weights()[0]).all()
    assert np.abs(net.get_weights()[0] - before[0]).max() > 0
    assert_equal_on_all_ranks(net.get_weights())


def test_loss_scaling_that_keras_adds_by_itself() -> None:
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        net = model()
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
    fit_shards(hvd.DistributedOptimizer(Adam(0.01)), net=net)
    assert isinstance(net.optimizer, tf.keras.mixed_precision.LossScaleOptimizer)
    assert_equal_on_all_ranks(net.get_weights())


@pytest.mark.parametrize("traced", [True, False], ids=["graph", "eager"])
def test_a_loop_of_its_own_reduces_in_apply_gradients(traced: bool, rank: int, size: int) -> None:
    variable = tf.Variable([1.0, 1.0])
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0))

    def step() -> None:
        optimizer.apply_gradients([(tf.fill([2], float(rank)), variable)])

    (tf.function(step) if traced else step)()
    assert np.allclose(variable, 1.0 - (size - 1) / 2)


@pytest.mark.parametrize("average", [True, False])
def test_passes_are_summed_with_sparse_gradients_and_those_of_local_variables(
    average: bool, rank: int, size: int
) -> None:
    """Infinite gradients of two passes leave nothing behind in the sums of the next two."""
    dense, sparse, local = (tf.Variable([[1.0], [2.0]]) for _ in range(3))
    variables = [dense, sparse, local]
    optimizer = hvd_keras.DistributedOptimizer(
        tf.keras.optimizers.SGD(1.0),
        backward_passes_per_step=2,
        average_aggregated_gradients=average,
        sparse_as_dense=True,
    )
    optimizer.build(variables)
    optimizer.register_local_var(local)

    @tf.function
    def step(scale: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(dense) + tf.reduce_sum(local) - tf.reduce_sum(tf.gather(sparse, 0))
            loss *= scale * float(rank + 1)
        gradients = tape.gradient(loss, variables)
        assert isinstance(gradients[1], tf.IndexedSlices)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    for _ in range(2):
        step(tf.constant(np.inf))
    assert not np.isfinite(dense.numpy()).any()
    for variable in variables:
        variable.assign([[1.0], [2.0]])
    for momentum in getattr(optimizer, "momentums", ()):  # tf-keras: infinity times zero
        momentum.assign(tf.zeros_like(momentum))
    for _ in range(5):
        step(tf.constant(1.0))
    steps = 2 if average else 4
    mean = (size + 1) / 2
    assert np.allclose(dense, [[1 - steps * mean], [2 - steps * mean]])
    assert np.allclose(sparse, [[1 + steps * mean], [2]])
    assert np.allclose(local, np.array([[1], [2]]) - steps * (rank + 1) / size)
    assert int(optimizer._horovod.accumulator.counter.numpy()) == 1


@pytest.mark.skipif(not IS_LEGACY, reason="optimizers of tf-keras")
@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("kind", ["legacy", "newer"])
def test_gradients_of_tf_keras_are_reduced_once(
    kind: str, passes: int, rank: int, size: int
) -> None:
    """By ``_compute_gradients``, as scripts of Horovod expect, or by ``apply_gradients``."""
    variable = tf.Variable([1.0, 1.0])
    kinds = tf.keras.optimizers.legacy if kind == "legacy" else tf.keras.optimizers
    optimizer = hvd.DistributedOptimizer(kinds.SGD(1.0), backward_passes_per_step=passes)
    mean = (size - 1) / 2
    for _ in range(passes):
        pairs = optimizer._compute_gradients(
            lambda: tf.reduce_sum(variable) * float(rank), [variable]
        )
        optimizer.apply_gradients(pairs)
    assert np.allclose(pairs[0][0], mean * passes)
    assert np.allclose(variable, 1.0 - mean * passes)
    for _ in range(passes):
        optimizer.apply_gradients([(tf.fill([2], float(rank)), variable)])
    assert np.allclose(variable, 1.0 - 2 * mean * passes)
    assert int(optimizer.iterations) == 2 * passes
