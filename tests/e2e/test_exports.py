"""The public names of ``horovod.torch`` and where else scripts import them from."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("horovod._engine")

import horovod.torch as hvd


def test_every_exported_name_exists_and_is_sorted() -> None:
    assert list(hvd.__all__) == sorted(hvd.__all__)
    for name in hvd.__all__:
        assert getattr(hvd, name) is not None


def test_every_call_that_the_documents_name_exists() -> None:
    root = Path(__file__).parents[2]
    documents = {root / "README.md", *(root / "docs").glob("*.md")}
    for document in documents - {root / "docs" / "tensorflow.md"}:  # see tests/tensorflow
        for path in re.findall(r"\bhvd((?:\.\w+)+)", document.read_text(encoding="utf-8")):
            found = hvd
            for name in path.split(".")[1:]:
                assert hasattr(found, name), f"{document.name}: hvd{path}"
                found = getattr(found, name)


def test_mpi_ops_has_all_collectives_and_questions() -> None:
    mpi_ops = importlib.import_module("horovod.torch.mpi_ops")
    for name in mpi_ops.__all__:
        assert getattr(mpi_ops, name) is getattr(hvd, name)
    assert set(mpi_ops.__all__) <= set(hvd.__all__)


def test_reductions_have_horovods_numbers() -> None:
    assert (hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product) == tuple(range(6))


REDUCE = "average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0"
REDUCE_SYNC = REDUCE.replace("name=None,", "name=None, compression=Compression.none,")
SET = "process_set=global_process_set"
SCATTER = f"op=Average, {SET}, prescale_factor=1.0, postscale_factor=1.0"
SIGNATURES = {
    "init": "comm=None, process_sets=None",
    "shutdown": "",
    **dict.fromkeys(
        (
            *("is_initialized", "rank", "size", "local_rank", "local_size", "cross_rank"),
            *("cross_size", "is_homogeneous", "mpi_threads_supported", "mpi_enabled", "mpi_built"),
            *("gloo_enabled", "gloo_built", "nccl_built", "ddl_built", "ccl_built", "cuda_built"),
            *("rocm_built", "stop_timeline"),
        ),
        "",
    ),
    "start_timeline": "file_path, mark_cycles=False",
    "allreduce": f"tensor, {REDUCE_SYNC}, {SET}",
    "allreduce_": f"tensor, {REDUCE}, {SET}",
    "allreduce_async": f"tensor, {REDUCE}, {SET}",
    "allreduce_async_": f"tensor, {REDUCE}, {SET}",
    "grouped_allreduce": f"tensors, {REDUCE_SYNC}, {SET}",
    "grouped_allreduce_": f"tensors, {REDUCE}, {SET}",
    "grouped_allreduce_async": f"tensors, {REDUCE}, {SET}",
    "grouped_allreduce_async_": f"tensors, {REDUCE}, {SET}",
    "sparse_allreduce_async": f"tensor, name, op, {SET}",
    "allgather": f"tensor, name=None, {SET}",
    "allgather_async": f"tensor, name=None, {SET}",
    "grouped_allgather": f"tensors, name=None, {SET}",
    "grouped_allgather_async": f"tensors, name=None, {SET}",
    "broadcast": f"tensor, root_rank, name=None, {SET}",
    "broadcast_": f"tensor, root_rank, name=None, {SET}",
    "broadcast_async": f"tensor, root_rank, name=None, {SET}",
    "broadcast_async_": f"tensor, root_rank, name=None, {SET}",
    "alltoall": f"tensor, splits=None, name=None, {SET}",
    "alltoall_async": f"tensor, splits=None, name=None, {SET}",
    "reducescatter": f"tensor, name=None, compression=Compression.none, {SCATTER}",
    "reducescatter_async": f"tensor, name=None, {SCATTER}",
    "grouped_reducescatter": f"tensors, name=None, compression=Compression.none, {SCATTER}",
    "grouped_reducescatter_async": f"tensors, name=None, {SCATTER}",
    "join": "device=-1",
    "barrier": SET,
    "poll": "handle",
    "synchronize": "handle",
    "add_process_set": "process_set",
    "remove_process_set": "process_set",
    "ProcessSet": "ranks_or_comm",
    "DistributedOptimizer": "optimizer, named_parameters=None, compression=Compression.none, "
    "backward_passes_per_step=1, op=Average, gradient_predivide_factor=1.0, num_groups=0, "
    f"groups=None, sparse_as_dense=False, {SET}",
    "SyncBatchNorm": "num_features, eps=1e-05, momentum=0.1, affine=True, "
    f"track_running_stats=True, {SET}",
    "broadcast_parameters": f"params, root_rank, {SET}",
    "broadcast_optimizer_state": f"optimizer, root_rank, model=None, {SET}",
    "broadcast_object": f"obj, root_rank=0, name=None, {SET}",
    "allgather_object": f"obj, name=None, {SET}",
}
"""{name: parameters and defaults}, from the facts about Horovod 0.28.1 (process_set also where
Horovod lacks it)."""

OTHER_NAMES = {
    *("Adasum", "Average", "Max", "Min", "Product", "Sum"),
    *("Compression", "HorovodInternalError", "HostsUpdatedInterrupt"),
    *("autotune", "elastic", "global_process_set"),
}


def test_the_public_names_are_horovods_and_a_few_more() -> None:
    assert set(hvd.__all__) == set(SIGNATURES) | OTHER_NAMES


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_are_horovods(name: str) -> None:
    """All parameters with their order and defaults; we may add some at the end."""
    names = {n: getattr(hvd, n) for n in ("Average", "Compression", "global_process_set")}
    wanted = inspect.signature(eval(f"lambda {SIGNATURES[name]}: 0", names)).parameters.values()
    found = list(inspect.signature(getattr(hvd, name)).parameters.values())
    assert [(p.name, p.default) for p in found][: len(wanted)] == [
        (p.name, p.default) for p in wanted
    ]
    assert all(p.default is not p.empty for p in found[len(wanted) :])


PATHS = {
    "horovod": ["run", "__version__"],
    "horovod.common.exceptions": ["HorovodInternalError", "HostsUpdatedInterrupt"],
    "horovod.common.process_sets": [
        *("ProcessSet", "add_process_set", "global_process_set", "remove_process_set"),
    ],
    "horovod.common.util": ["num_rank_is_power_2", "split_list"],
    "horovod.runner": ["run"],
    "horovod.runner.util.threads": ["in_thread"],
    "horovod.torch.compression": ["Compression"],
    "horovod.common.elastic": ["ObjectState", "State", "notification_manager", "run_fn"],
    "horovod.torch.elastic": ["ElasticSampler", "TorchState", "run"],
    "horovod.torch.elastic.sampler": ["ElasticSampler"],
    "horovod.torch.elastic.state": [
        *("ModelStateHandler", "OptimizerStateHandler", "SamplerStateHandler", "StateHandler"),
        *("TorchState", "get_handler_registry", "set_handler_registry"),
    ],
    "horovod.torch.functions": [
        *("allgather_object", "broadcast_object"),
        *("broadcast_optimizer_state", "broadcast_parameters"),
    ],
    "horovod.torch.mpi_ops": ["Adasum", "Average", "Sum", "allreduce_async_", "rank", "_basics"],
    "horovod.torch.optimizer": ["DistributedOptimizer"],
    "horovod.torch.sync_batch_norm": ["SyncBatchNorm"],
}


@pytest.mark.parametrize("path", PATHS)
def test_module_paths_that_scripts_import(path: str) -> None:
    module = importlib.import_module(path)
    for name in PATHS[path]:
        assert getattr(module, name) is not None
        if hasattr(hvd, name) and path.startswith("horovod.torch") and "elastic" not in path:
            assert getattr(module, name) is getattr(hvd, name)


def test_before_init_every_question_is_a_value_error() -> None:
    assert not hvd.is_initialized()
    for call in (hvd.rank, hvd.size, hvd.local_rank, hvd.cross_size, hvd.is_homogeneous):
        with pytest.raises(ValueError, match=r"call hvd\.init\(\) first"):
            call()
    for call in (hvd.autotune.status, hvd.autotune.step, hvd.autotune.pause, hvd.autotune.params):
        with pytest.raises(ValueError, match=r"call hvd\.init\(\) first"):
            call()
    assert hvd.global_process_set.size() is None


def test_what_is_not_there_says_so() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = hvd.nonsense
