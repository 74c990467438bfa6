"""Collectives of numpy arrays, and variables that are made the same or seen to differ."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

import horovod.torch as hvd
from horovod.common import arrays, variables
from horovod.common.variables import Watch, broadcast_variables

TYPES = ("bool", "uint8", "int16", "int64", "float16", "float32", "float64", "complex128", "U3")


class Variable:
    """As much of a framework's variable as is needed."""

    def __init__(self, value: Any, name: str = "dense_1/kernel:0") -> None:
        self.value = np.asarray(value)
        self.name = name

    def numpy(self) -> np.ndarray:
        return self.value

    def assign(self, value: np.ndarray) -> None:
        self.value = value.copy()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 5)], ids=str)
def test_arrays_of_any_type_become_roots(shape: tuple[int, ...], dtype: str, rank: int) -> None:
    root = hvd.size() - 1
    own = np.full(shape, rank).astype(dtype)
    arrays.broadcast_all([own], root, ["array"])
    assert np.array_equal(own, np.full(shape, root).astype(dtype))


def test_arrays_of_other_lengths_are_gathered(rank: int, size: int) -> None:
    gathered = arrays.allgather(np.full((rank, 2), rank), "rows")
    assert gathered[:, 0].tolist() == [r for r in range(size) for _ in range(r)]


def test_arrays_are_reduced_and_stay_as_they_are(rank: int, size: int) -> None:
    own = np.arange(6.0).reshape(2, 3)[:, ::2] + rank
    total = arrays.allreduce(own, hvd.Sum, "sum")
    assert np.array_equal(total, np.array([[0, 2], [3, 5]]) * size + size * (size - 1) / 2)
    assert own[0, 0] == rank


def test_what_the_engine_refuses_is_a_value_error(two_ranks: None) -> None:
    with pytest.raises(ValueError, match="root"):
        arrays.broadcast_all([np.zeros(1)], 99, ["wrong"])
    with pytest.raises(hvd.HorovodInternalError):
        arrays.allreduce(np.zeros(1 + hvd.rank()), hvd.Sum, "shapes")
    assert arrays.allreduce(np.ones(1), hvd.Sum, "next")[0] == hvd.size()


def test_many_variables_become_roots_a_part_at_a_time(
    rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variables, "BYTES_AT_A_TIME", 100)
    ours = [Variable(np.full(n, rank + n, np.float32)) for n in (3, 40, 1, 0, 7, 90, 2)]
    broadcast_variables(ours, 0)
    assert all((v.numpy() == v.numpy().size).all() for v in ours)


def test_other_variables_on_other_ranks_are_one_sentence_on_all(two_ranks: None, rank: int) -> None:
    with pytest.raises(ValueError, match="got 2 on rank 0 and 1 on rank 1; build the model"):
        broadcast_variables([Variable(0.0)] * (2 - min(rank, 1)), 0)
    with pytest.raises(ValueError, match=r"got dense/kernel \(1,\) float64 on rank 0 and"):
        broadcast_variables([Variable(np.zeros(rank + 1))], 0)


def looks(watch: Watch, weights: list[Variable], steps: int, moves: bool = True) -> list[bool]:
    done = []
    for _ in range(steps):
        done.append(watch.look())
        if moves:
            for weight in weights:
                weight.assign(weight.numpy() + 1.0)
    return done


@pytest.mark.parametrize("apart", [0.0, 1e-5, 0.5])
def test_weights_that_differ_are_noticed_after_the_first_step(
    apart: float, two_ranks: None, rank: int, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="horovod")
    values = np.random.default_rng(1).normal(size=(30, 7))
    last = rank == size - 1
    weights = [Variable(values), Variable(values * (1 + apart * last)), Variable(np.zeros(3))]
    assert looks(Watch(weights, hvd.global_process_set, 1), weights, 3) == [False, True, True]
    found = [each.message for each in caplog.records if "weights differ" in each.message]
    assert len(found) == (rank == 0 and apart > 0.1)
    if found:
        assert f"dense/kernel (ranks 0 and {size - 1})" in found[0]


def test_weights_that_no_step_has_changed_yet_are_looked_at_again(two_ranks: None) -> None:
    weights = [Variable(np.ones(3))]
    done = looks(Watch(weights, hvd.global_process_set, 2), weights, 20, moves=False)
    assert done == [False] * Watch.MOST_LOOKS + [True] * (20 - Watch.MOST_LOOKS)
