"""The public names of ``horovod.torch`` and where else scripts import them from."""

from __future__ import annotations

import importlib
import inspect

import pytest

pytest.importorskip("torch")
pytest.importorskip("horovod._engine")

import horovod.torch as hvd


def test_every_exported_name_exists_and_is_sorted() -> None:
    assert list(hvd.__all__) == sorted(hvd.__all__)
    for name in hvd.__all__:
        assert getattr(hvd, name) is not None


def test_module_paths_give_the_same_objects() -> None:
    mpi_ops = importlib.import_module("horovod.torch.mpi_ops")
    for name in mpi_ops.__all__:
        assert getattr(mpi_ops, name) is getattr(hvd, name)
    compression = importlib.import_module("horovod.torch.compression")
    assert compression.Compression is hvd.Compression
    functions = importlib.import_module("horovod.torch.functions")
    assert functions.broadcast_object is hvd.broadcast_object


def test_reductions_have_horovods_numbers() -> None:
    assert (hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product) == tuple(range(6))


SIGNATURES = {
    "init": ["comm", "process_sets"],
    "allreduce": [
        *("tensor", "average", "name", "compression", "op"),
        *("prescale_factor", "postscale_factor", "process_set"),
    ],
    "allreduce_async_": [
        *("tensor", "average", "name", "op"),
        *("prescale_factor", "postscale_factor", "process_set"),
    ],
    "grouped_allreduce": [
        *("tensors", "average", "name", "compression", "op"),
        *("prescale_factor", "postscale_factor", "process_set"),
    ],
    "allgather": ["tensor", "name", "process_set"],
    "broadcast": ["tensor", "root_rank", "name", "process_set"],
    "broadcast_parameters": ["params", "root_rank", "process_set"],
    "broadcast_optimizer_state": ["optimizer", "root_rank", "model"],
    "broadcast_object": ["obj", "root_rank", "name", "process_set"],
    "allgather_object": ["obj", "name", "process_set"],
    "barrier": ["process_set"],
    "DistributedOptimizer": [
        *("optimizer", "named_parameters", "compression", "backward_passes_per_step", "op"),
        *("gradient_predivide_factor", "num_groups", "groups", "sparse_as_dense", "process_set"),
    ],
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_are_horovods(name: str) -> None:
    assert list(inspect.signature(getattr(hvd, name)).parameters) == SIGNATURES[name]


def test_before_init_every_question_is_a_value_error() -> None:
    assert not hvd.is_initialized()
    for call in (hvd.rank, hvd.size, hvd.local_rank, hvd.cross_size, hvd.is_homogeneous):
        with pytest.raises(ValueError, match=r"call hvd\.init\(\) first"):
            call()
    for call in (hvd.autotune.status, hvd.autotune.step, hvd.autotune.pause, hvd.autotune.params):
        with pytest.raises(ValueError, match=r"call hvd\.init\(\) first"):
            call()
    assert hvd.global_process_set.size() is None


def test_what_is_not_there_yet_says_so() -> None:
    with pytest.raises(AttributeError, match="SyncBatchNorm is not supported in this version"):
        _ = hvd.SyncBatchNorm
    for call in (hvd.elastic.run, hvd.elastic.TorchState, hvd.elastic.ElasticSampler):
        with pytest.raises(NotImplementedError, match="jobs have a fixed size"):
            call(None)
    with pytest.raises(AttributeError, match="jobs have a fixed size"):
        _ = hvd.elastic.ObjectState
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = hvd.nonsense
