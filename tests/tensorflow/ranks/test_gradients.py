"""Gradients of the operations: Horovod's, and derivatives where it has none."""

from __future__ import annotations

import numpy as np
import pytest

import horovod.tensorflow as hvd
import tensorflow as tf


def gradient(run, function, tensor: tf.Tensor, weights=None):
    """Return d sum(function(tensor) * weights) / d tensor."""

    def of(own):
        with tf.GradientTape() as tape:
            tape.watch(own)
            result = function(own)
        return tape.gradient(result, own, weights)

    return run(of, tensor)


@pytest.mark.parametrize(("op", "each"), [(hvd.Sum, "size"), (hvd.Average, "one")])
def test_of_a_reduction_it_is_the_same_reduction(run, op, each, size) -> None:
    found = gradient(run, lambda t: hvd.allreduce(t, op=op), tf.ones([2, 3]))
    np.testing.assert_allclose(found, np.full([2, 3], size if each == "size" else 1.0))


def test_of_a_named_reduction_it_has_a_name(run, size) -> None:
    found = gradient(run, lambda t: hvd.allreduce(t, op=hvd.Sum, name="named"), tf.ones([2]))
    np.testing.assert_allclose(found, [size, size])


def test_of_factors_it_has_them_too(run, size) -> None:
    found = gradient(
        run,
        lambda t: hvd.allreduce(t, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0),
        tf.ones([2]),
    )
    np.testing.assert_allclose(found, [1.5 * size] * 2)


def test_of_a_group_it_is_a_group(run, size) -> None:
    def weighted(tensor):
        a, b = hvd.grouped_allreduce([tensor, tf.cast(tensor, tf.float64)], op=hvd.Sum)
        return a + 2 * tf.cast(b, tf.float32)

    np.testing.assert_allclose(gradient(run, weighted, tf.ones([2])), [3.0 * size] * 2)


def test_of_a_group_of_which_a_part_is_used(run, size) -> None:
    def first(tensor):
        return hvd.grouped_allreduce([tensor, tf.cast(tensor, tf.float64)], op=hvd.Sum)[0]

    np.testing.assert_allclose(gradient(run, first, tf.ones([2])), [float(size)] * 2)


def test_of_an_extreme_it_goes_to_who_has_it(run, rank, size) -> None:
    own = tf.constant([float(rank), float(-rank), 1.0])
    found = gradient(run, lambda t: hvd.allreduce(t, op=hvd.Max), own)
    last, first = float(size * (rank == size - 1)), float(size * (rank == 0))
    np.testing.assert_allclose(found, [last, first, 1.0])


def test_of_a_product_it_is_the_product_of_the_others(run, rank, size) -> None:
    own = tf.constant([float(rank + 1), 0.0 if rank == 0 else 2.0])
    found = gradient(run, lambda t: hvd.allreduce(t, op=hvd.Product), own)
    others = np.prod([r + 1.0 for r in range(size) if r != rank])
    zero = size * 2.0 ** (size - 1) if rank == 0 else 0.0
    np.testing.assert_allclose(found, [size * others, zero])


def test_of_an_allgather_it_is_the_average_of_the_own_rows(run, rank, size) -> None:
    rows = sum(range(1, size + 1))
    weights = tf.reshape(tf.range(rows, dtype=tf.float32), [rows, 1]) * (rank + 1.0)
    found = gradient(run, hvd.allgather, tf.ones([rank + 1, 1]), weights)
    first = sum(range(1, rank + 1))
    expected = [[(first + i) * (size + 1) / 2] for i in range(rank + 1)]
    np.testing.assert_allclose(found, expected)


def test_of_a_grouped_allgather(run, rank, size) -> None:
    def both(tensor):
        a, b = hvd.grouped_allgather([tensor, tensor[:1]])
        return tf.reduce_sum(a) + 2 * tf.reduce_sum(b)

    found = gradient(run, both, tf.ones([rank + 1]))
    np.testing.assert_allclose(found, [3.0] + [1.0] * rank)


def test_of_a_broadcast_it_is_the_average_at_the_root(run, rank, size) -> None:
    weights = tf.fill([2], float(rank))
    found = gradient(run, lambda t: hvd.broadcast(t, size - 1), tf.ones([2]), weights)
    np.testing.assert_allclose(found, [(size - 1) / 2 if rank == size - 1 else 0.0] * 2)


def test_of_an_alltoall_it_travels_back_and_unsent_rows_get_zero(run, rank, size) -> None:
    weights = tf.fill([size], float(rank + 1))
    found = gradient(run, lambda t: hvd.alltoall(t, [1] * size)[0], tf.ones([size + 1]), weights)
    np.testing.assert_allclose(found, [*range(1, size + 1), 0.0])
    found = gradient(run, hvd.alltoall, tf.ones([size]), weights)
    np.testing.assert_allclose(found, range(1, size + 1))


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average])
def test_of_a_reducescatter_it_is_an_allgather(run, op, rank, size) -> None:
    weights = tf.fill([2, 1], float(rank + 1))
    own = tf.ones([2 * size, 1])
    found = gradient(run, lambda t: hvd.reducescatter(t, op=op), own, weights)
    factor = size if op == hvd.Sum else 1
    np.testing.assert_allclose(found[:, 0], [factor * (r // 2 + 1) for r in range(2 * size)])


def test_in_a_process_set_it_stays_there(run, two_ranks, rank, size) -> None:
    sets = [hvd.add_process_set([r]) for r in range(size)]
    own = sets[rank]
    try:
        for function in (
            lambda t: hvd.allreduce(t, op=hvd.Sum, process_set=own),
            lambda t: hvd.allgather(t, process_set=own),
            lambda t: hvd.broadcast(t, rank, process_set=own),
            lambda t: hvd.alltoall(t, process_set=own),
            lambda t: hvd.reducescatter(t, process_set=own),
        ):
            np.testing.assert_allclose(gradient(run, function, tf.ones([2])), [1.0, 1.0])
    finally:
        for each in sets:
            hvd.remove_process_set(each)
