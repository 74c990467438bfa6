"""How operations run: side by side, in any order, in loops, and what is left of them."""

from __future__ import annotations

import resource

import numpy as np
import pytest

import horovod.tensorflow as hvd
import tensorflow as tf
from horovod.common import basics


def test_fifty_independent_operations_in_opposite_orders(rank, size) -> None:
    @tf.function
    def step(own):
        order = range(50) if rank % 2 == 0 else range(49, -1, -1)
        done = {i: hvd.allreduce(own + float(i), op=hvd.Sum, name=f"t{i}") for i in order}
        return [done[i] for i in range(50)]

    for _ in range(5):
        for i, each in enumerate(step(tf.ones([3]))):
            np.testing.assert_allclose(each, [(1.0 + i) * size] * 3)


def test_operations_of_a_function_do_not_wait_for_each_other(rank, size) -> None:
    """Rank 0 hands over an operation that depends on a later one of another kind."""

    @tf.function
    def step(own):
        if rank == 0:
            first = hvd.allreduce(own, op=hvd.Sum, name="first")
            second = hvd.allgather(own, name="second")
        else:
            second = hvd.allgather(own, name="second")
            with tf.control_dependencies([second]):
                first = hvd.allreduce(own, op=hvd.Sum, name="first")
        return first, second

    first, second = step(tf.ones([2]))
    assert first.numpy().tolist() == [size, size]
    assert second.shape == (2 * size,)


def test_a_loop_in_a_function(size) -> None:
    @tf.function
    def loop(own):
        for _ in tf.range(20):
            own = hvd.allreduce(own, op=hvd.Average, name="loop") + 1.0
        return own

    assert loop(tf.zeros([2])).numpy().tolist() == [20.0, 20.0]


def plainly(own, used):
    """Return ``own``, and the sum over the ranks where this one uses it."""
    total = hvd.allreduce(own, op=hvd.Sum)
    return total if used else own


def in_a_function(own, used):
    inner = tf.function(lambda own: (own + 0.0, hvd.allreduce(own, op=hvd.Sum)))
    return inner(own)[int(used)]


def in_a_branch(own, used):
    def branch():
        return plainly(own, used)

    return tf.cond(tf.reduce_sum(own) > 0.0, branch, lambda: own)


def in_a_loop(own, used):
    last = own
    for _ in tf.range(3):
        last = plainly(own, used) + 0.0 * last
    return last


def as_a_pair(own, used):
    received, rows = hvd.alltoall(own, splits=[1] * hvd.size())
    return tf.reduce_sum(received) + tf.cast(rows[:2], own.dtype) if used else own


@pytest.mark.timeout(60)
@pytest.mark.parametrize("where", [plainly, in_a_function, in_a_branch, in_a_loop, as_a_pair])
def test_a_result_that_one_rank_uses_is_there(where, two_ranks, rank, size) -> None:
    """Nothing on the others depends on it, and a function leaves out what nothing depends on."""
    step = tf.function(where)
    for _ in range(2):
        result = step(tf.ones([size]), rank == 0)
        if where is not as_a_pair:
            assert result.numpy().tolist() == [size if rank == 0 else 1.0] * size


def test_an_operation_whose_result_nobody_uses_runs(size) -> None:
    @tf.function
    def step(own):
        hvd.allreduce(own, name="unused")
        return hvd.allreduce(own, op=hvd.Sum, name="used")

    before = basics.engine().counters()["operations"]
    assert step(tf.ones([2])).numpy().tolist() == [size, size]
    assert basics.engine().counters()["operations"] == before + 2


def test_ranks_may_compute_from_other_constants(rank, size) -> None:
    @tf.function
    def step():
        return hvd.allreduce(tf.constant([float(rank)]), op=hvd.Sum)

    for _ in range(3):
        assert step().numpy().tolist() == [size * (size - 1) / 2]


def test_a_captured_tensor_has_the_same_name_on_ranks_that_have_made_others(rank, size) -> None:
    for _ in range(7 * rank):
        tf.ones([2]) + 1.0
    captured = tf.ones([2])

    @tf.function
    def step():
        return hvd.allreduce(captured, op=hvd.Sum), hvd.allgather(captured)

    reduced, gathered = step()
    assert reduced.numpy().tolist() == [size, size]
    assert gathered.shape == (2 * size,)


def test_the_same_function_twice_in_a_function(size) -> None:
    @tf.function
    def inner(own):
        return hvd.allreduce(own, op=hvd.Sum)

    @tf.function
    def outer(own):
        return inner(own) + inner(own + 1.0)

    assert outer(tf.ones([2])).numpy().tolist() == [3.0 * size] * 2


def test_two_of_one_name_at_once_are_refused_in_one_sentence(two_ranks, rank) -> None:
    @tf.function
    def step(own):
        named = [hvd.allreduce(own + i, name="twice", ignore_name_scope=True) for i in range(2)]
        return sum(named)

    with pytest.raises(tf.errors.InvalidArgumentError, match="a name that is not in flight"):
        step(tf.ones([100]))
    np.testing.assert_allclose(hvd.allreduce(tf.ones([2])), [1.0, 1.0])


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (lambda rank: hvd.allreduce(tf.ones([2 + rank]), name="x"), "same shape on all ranks"),
        (
            lambda rank: hvd.allreduce(tf.ones([2], tf.float64 if rank else tf.float32), name="x"),
            "same data type on all ranks",
        ),
        (lambda rank: hvd.allgather(tf.ones([2, 2 + rank]), name="x"), "same shape after"),
        (lambda rank: hvd.allgather(tf.constant(1.0), name="x"), "at least one dimension"),
        (lambda rank: hvd.broadcast(tf.ones([2]), rank % 2, name="x"), "same root rank"),
    ],
)
def test_a_disagreement_fails_on_all_ranks_and_the_job_goes_on(
    run, wrong, expected, two_ranks, rank, size
) -> None:
    with pytest.raises(tf.errors.FailedPreconditionError, match=expected):
        run(lambda: wrong(rank))
    np.testing.assert_allclose(hvd.allreduce(tf.ones([2])), [1.0, 1.0])


def test_what_is_wrong_on_this_rank_is_refused_here(run, rank, size) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="root rank"):
        run(lambda: hvd.broadcast(tf.ones([2]), size))
    with pytest.raises(ValueError, match="whole numbers"):
        hvd.alltoall(tf.ones([size]), splits=tf.ones([size]))
    if size > 1:
        with pytest.raises(tf.errors.InvalidArgumentError, match="divide evenly"):
            run(lambda: hvd.alltoall(tf.ones([size + 1])))


def test_eager_calls_without_a_name_leave_nothing_behind(size) -> None:
    own = tf.ones([4])
    for _ in range(200):
        hvd.allreduce(own)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(2_000):
        hvd.allreduce(own)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib <= 1024  # names as attributes would take 72 MiB


def test_a_graph_of_a_session_and_eager_calls_meet(size) -> None:
    graph = tf.Graph()
    with graph.as_default():
        place = tf.compat.v1.placeholder(tf.float32, [2])
        reduced = hvd.allreduce(place, op=hvd.Sum, name="session")
        with tf.compat.v1.Session() as session:
            result = session.run(reduced, {place: np.ones(2, np.float32)})
    assert result.tolist() == [size, size]


def test_shutdown_and_init_again(rank, size) -> None:
    traced = tf.function(lambda own: hvd.allreduce(own, op=hvd.Sum))
    traced(tf.ones([2]))
    hvd.shutdown()
    with pytest.raises(ValueError, match=r"hvd\.init\(\)"):
        hvd.allreduce(tf.ones([2]))
    assert int(hvd.process_set_included_op()) in (1, -1)
    hvd.init()
    assert traced(tf.ones([2])).numpy().tolist() == [size, size]
    assert int(hvd.rank_op()) == rank
