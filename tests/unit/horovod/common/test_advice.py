"""Advice on settings that make a job slow: U6 and U7 of what people met."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("horovod._engine")

from horovod.common.advice import on_cache, on_threads, tensors_of_step


@pytest.mark.parametrize(
    ("given", "local_size", "cores", "own_cores", "fewer"),
    [
        ("4", 2, 2, 2, 1),
        ("4,2", 2, 4, 4, 2),
        ("2", 2, 8, 1, 1),
        ("3", 4, 8, 8, 2),
        ("2", 2, 2.5, 2.5, 1),  # a container's quota
        ("2", 1, 0.5, 0.5, 1),
    ],
)
def test_more_threads_than_cores_are_told_with_what_to_set(
    given: str, local_size: int, cores: float, own_cores: float, fewer: int
) -> None:
    text = on_threads(given, local_size=local_size, cores=cores, own_cores=own_cores)
    assert text.startswith(f"OMP_NUM_THREADS={given[0]} for ")
    assert f"set OMP_NUM_THREADS={fewer}" in text


def test_threads_and_ranks_are_set_against_the_cores() -> None:
    text = on_threads("4", local_size=2, cores=2, own_cores=2)
    assert "2 ranks of this host are 8 threads on 2 cores" in text


@pytest.mark.parametrize(
    ("given", "local_size", "cores", "own_cores"),
    [
        ("", 4, 2, 2),  # what PyTorch then takes is not known here
        ("1", 4, 2, 2),  # fewer threads are not possible
        ("2", 2, 4, 4),
        ("2", 2, 4, 2),  # bound
        ("many", 2, 2, 2),
    ],
)
def test_threads_that_fit_are_not_mentioned(
    given: str, local_size: int, cores: int, own_cores: int
) -> None:
    assert on_threads(given, local_size=local_size, cores=cores, own_cores=own_cores) == ""


def test_a_cache_that_is_too_small_is_told_with_one_that_is_not() -> None:
    text = on_cache(1500, 1024)
    assert "holds 1,024 of 1,500" in text and "HOROVOD_CACHE_CAPACITY >= 2048" in text
    assert "HOROVOD_CACHE_CAPACITY >= 2048" in on_cache(2048, 1024)


@pytest.mark.parametrize(("tensors", "capacity"), [(1024, 1024), (1500, 0), (0, 1024)])
def test_a_cache_that_holds_all_or_is_off_is_not_mentioned(tensors: int, capacity: int) -> None:
    assert on_cache(tensors, capacity) == ""


def test_what_happens_once_is_no_training_step() -> None:
    """A broadcast of 1,500 parameters at the start, then steps of two tensors."""
    signatures = [(1, [("broadcast", 4)] * 1500), (2, [("allreduce", 4)] * 2)]
    records = [SimpleNamespace(signature=1, count=1), SimpleNamespace(signature=2, count=7)]
    assert tensors_of_step(records, signatures) == 2  # type: ignore[arg-type]
    assert tensors_of_step(records[:1], signatures) == 0  # type: ignore[arg-type]
