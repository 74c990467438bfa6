"""What the operations return, in eager mode and in functions, for all types."""

from __future__ import annotations

import numpy as np
import pytest

import horovod.tensorflow as hvd
import tensorflow as tf
from horovod.tensorflow.mpi_ops import _allreduce

REDUCED = ("uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
MOVED = (*REDUCED, "bool", "uint16", "uint32", "uint64", "complex64")


def numbers(dtype: str, *shape: int) -> tf.Tensor:
    """Return small whole numbers, which every type has."""
    count = int(np.prod(shape))
    return tf.cast(tf.reshape(tf.range(count) % 3, shape), dtype)


@pytest.mark.parametrize("dtype", REDUCED)
def test_a_sum_of_every_type_and_shape(run, dtype, rank, size) -> None:
    for shape in ((), (5,), (2, 3), (0, 4)):
        own = numbers(dtype, *shape) * tf.cast(rank + 1, dtype)
        reduced = run(lambda t: hvd.allreduce(t, op=hvd.Sum), own)
        assert reduced.dtype == own.dtype
        assert reduced.shape == own.shape
        expected = numbers("int64", *shape) * sum(range(1, size + 1))
        np.testing.assert_array_equal(tf.cast(reduced, tf.int64), expected)


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (hvd.Average, lambda size: (size + 1) / 2),
        (hvd.Sum, lambda size: size * (size + 1) / 2),
        (hvd.Min, lambda size: 1.0),
        (hvd.Max, lambda size: float(size)),
        (hvd.Product, lambda size: float(np.prod(range(1, size + 1)))),
    ],
)
def test_every_reduction(run, op, expected, rank, size) -> None:
    reduced = run(lambda t: hvd.allreduce(t, op=op), tf.fill([3], float(rank + 1)))
    np.testing.assert_allclose(reduced, [expected(size)] * 3)


def test_a_bool_is_reduced_where_that_makes_sense(run, rank, size) -> None:
    own = tf.constant([rank == 0, True, False])
    assert run(lambda t: hvd.allreduce(t, op=hvd.Min), own).numpy().tolist() == [
        size == 1,
        True,
        False,
    ]


def test_adasum_of_equal_tensors_is_that_tensor(run, size) -> None:
    own = tf.constant([1.0, 2.0, 3.0])
    reduced = run(lambda t: hvd.allreduce(t, op=hvd.Adasum), own)
    np.testing.assert_allclose(reduced, own, rtol=1e-6)


def test_factors_have_all_their_digits(run, size) -> None:
    factor = 1 / 3 + 1e-12  # no number of 32 bits
    own = tf.constant([3.0], tf.float64)
    reduced = run(lambda t: _allreduce(t, op=hvd.Sum, prescale_factor=factor), own)
    np.testing.assert_allclose(reduced, [3 * factor * size], rtol=1e-15)
    reduced = run(lambda t: _allreduce(t, op=hvd.Sum, postscale_factor=factor), own)
    np.testing.assert_allclose(reduced, [3 * factor * size], rtol=1e-15)


def test_a_group_may_have_several_types(run, rank, size) -> None:
    own = [numbers(dtype, 4) for dtype in ("float32", "int64", "bfloat16")]
    reduced = run(lambda *t: hvd.grouped_allreduce(t, op=hvd.Sum), *own)
    for before, after in zip(own, reduced, strict=True):
        np.testing.assert_array_equal(tf.cast(after, tf.int64), tf.cast(before, tf.int64) * size)


@pytest.mark.parametrize("dtype", MOVED)
def test_every_type_is_moved(run, dtype, rank, size) -> None:
    own = tf.cast(tf.fill([rank + 1, 2], rank % 2), dtype)
    gathered = run(lambda t: hvd.allgather(t), own)
    assert gathered.dtype == own.dtype
    expected = [[r % 2] * 2 for r in range(size) for _ in range(r + 1)]
    np.testing.assert_array_equal(gathered, np.array(expected, gathered.numpy().dtype))
    root = size - 1
    same = tf.cast(tf.fill([3], rank % 2), dtype)
    received = run(lambda t: hvd.broadcast(t, root), same)
    np.testing.assert_array_equal(received, tf.cast(tf.fill([3], root % 2), dtype))


def test_a_rank_may_gather_nothing(run, rank, size) -> None:
    own = tf.ones([0 if rank == 0 else 2, 3])
    assert run(lambda t: hvd.allgather(t), own).shape == (2 * (size - 1), 3)


def test_a_group_is_gathered(run, rank, size) -> None:
    own = [tf.fill([rank + 1], rank), tf.fill([1, 2], float(rank))]
    gathered = run(lambda *t: hvd.grouped_allgather(t), *own)
    assert gathered[0].numpy().tolist() == [r for r in range(size) for _ in range(r + 1)]
    assert gathered[1].numpy().tolist() == [[float(r)] * 2 for r in range(size)]


def test_alltoall_with_splits_says_what_came_from_whom(run, rank, size) -> None:
    splits = [r + 1 for r in range(size)]
    own = tf.fill([sum(splits), 2], rank)
    received, rows = run(lambda t: hvd.alltoall(t, splits=splits), own)
    assert rows.numpy().tolist() == [rank + 1] * size
    assert received.numpy().tolist() == [[r] * 2 for r in range(size) for _ in range(rank + 1)]


def test_alltoall_in_equal_parts(run, rank, size) -> None:
    received = run(lambda t: hvd.alltoall(t), tf.range(2 * size) + 100 * rank)
    assert received.numpy().tolist() == [
        100 * r + 2 * rank + i for r in range(size) for i in range(2)
    ]


def test_reducescatter_gives_the_first_ranks_one_row_more(run, rank, size) -> None:
    rows = 2 * size + 1
    own = tf.reshape(tf.range(rows * 3, dtype=tf.float32), [rows, 3])
    part = run(lambda t: hvd.reducescatter(t, op=hvd.Sum), own)
    lengths = [3 if r == 0 else 2 for r in range(size)]
    first = sum(lengths[:rank])
    np.testing.assert_allclose(part, own[first : first + lengths[rank]] * size)
    parts = run(lambda *t: hvd.grouped_reducescatter(t), own, own)
    np.testing.assert_allclose(parts[1], own[first : first + lengths[rank]])


def test_the_shape_of_rows_is_known_in_a_function_but_for_their_number() -> None:
    shapes = []

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32)])
    def traced(tensor):
        received, rows = hvd.alltoall(tensor, splits=[1] * hvd.size())
        shapes.extend(each.shape for each in (hvd.allgather(tensor), received, rows))
        shapes.append(hvd.allreduce(tensor).shape)
        return tensor

    traced.get_concrete_function()
    assert [shape.as_list() for shape in shapes] == [
        [None, 3],
        [None, 3],
        [hvd.size()],
        [None, 3],
    ]


def test_sparse_tensors_are_gathered(run, rank, size) -> None:
    def reduced(values, indices):
        slices = tf.IndexedSlices(values, indices, dense_shape=tf.constant([size + 1, 2]))
        return tf.convert_to_tensor(hvd.allreduce(slices))

    values = tf.fill([2, 2], float(size))
    dense = run(reduced, values, tf.constant([rank, size]))
    assert dense.numpy().tolist() == [[1.0, 1.0]] * size + [[float(size)] * 2]


def test_a_group_of_sparse_and_dense_tensors_keeps_its_order(run, rank, size) -> None:
    def reduced(values, indices, tensor):
        slices = tf.IndexedSlices(values, indices, dense_shape=tf.constant([size, 2]))
        done = hvd.grouped_allreduce([tensor, slices, tensor], op=hvd.Sum)
        return [tf.convert_to_tensor(each) for each in done]

    result = run(reduced, tf.ones([1, 2]), tf.constant([rank]), tf.ones([3]))
    assert [each.shape.as_list() for each in result] == [[3], [size, 2], [3]]
    np.testing.assert_allclose(result[1], tf.ones([size, 2]))


@pytest.mark.parametrize("op", [hvd.Min, hvd.Max, hvd.Product, hvd.Adasum])
def test_what_is_not_there_for_sparse_tensors_is_refused(op) -> None:
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), dense_shape=tf.constant([2, 2]))
    with pytest.raises(NotImplementedError, match="IndexedSlices"):
        hvd.allreduce(slices, op=op)
    with pytest.raises(NotImplementedError, match="factors"):
        hvd.grouped_allreduce([slices], prescale_factor=2.0)


def test_variables_are_overwritten_together(run, rank, size) -> None:
    variables = [tf.Variable(tf.fill([3], float(rank))), tf.Variable(rank == 0)]
    values = run(lambda: hvd.broadcast_(variables, root_rank=size - 1))
    assert variables[0].numpy().tolist() == [float(size - 1)] * 3
    assert values[0].numpy().tolist() == [float(size - 1)] * 3
    assert bool(variables[1].numpy()) == (size == 1)


def test_a_variable_is_a_tensor(run, rank, size) -> None:
    variable = tf.Variable(tf.fill([3], float(rank)))
    reduced = run(lambda: hvd.allreduce(variable, op=hvd.Sum))
    assert reduced.numpy().tolist() == [size * (size - 1) / 2] * 3


def test_questions_are_answered_when_the_operation_runs(run, rank, size) -> None:
    asked = run(
        lambda: [
            hvd.rank_op(),
            hvd.size_op(),
            hvd.local_rank_op(),
            hvd.local_size_op(),
            hvd.process_set_included_op(),
            hvd.process_set_included_op(99),
        ]
    )
    answers = [rank, size, hvd.local_rank(), hvd.local_size(), 1, -2]
    assert [int(each) for each in asked] == answers


def test_a_process_set_is_its_members(run, two_ranks, rank, size) -> None:
    sets = [hvd.add_process_set([r]) for r in range(size)]
    own = sets[rank]
    try:
        reduced = run(lambda t: hvd.allreduce(t, op=hvd.Sum, process_set=own), tf.fill([2], rank))
        assert reduced.numpy().tolist() == [rank, rank]
        gathered = run(lambda t: hvd.allgather(t, process_set=own), tf.fill([2], rank))
        assert gathered.numpy().tolist() == [rank, rank]
        included = [int(hvd.process_set_included_op(each.process_set_id)) for each in sets]
        assert included == [int(r == rank) for r in range(size)]
        assert int(hvd.size_op(own.process_set_id)) == 1
        other = sets[(rank + 1) % size]
        with pytest.raises(tf.errors.InvalidArgumentError, match="only its members"):
            run(lambda t: hvd.allreduce(t, process_set=other), tf.ones([2]))
    finally:
        for each in sets:
            hvd.remove_process_set(each)


def test_ranks_join_and_count_anew(run, two_ranks, rank, size) -> None:
    for _ in range(rank + 1):
        hvd.allreduce(tf.ones([2]), op=hvd.Sum)  # zeros of those that have joined
    last = run(hvd.join)
    assert int(last) == size - 1
    np.testing.assert_allclose(hvd.allreduce(tf.ones([2]), op=hvd.Sum), [size, size])
