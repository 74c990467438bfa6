"""What libraries written for Horovod import, ask and do, by the lines that they contain."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import horovod.torch as hvd
from horovod.common.exceptions import HorovodInternalError

NAMES = {
    "horovod.common.util": "gpu_available nccl_built mpi_built gloo_built ddl_built ccl_built "
    "extension_available check_extension env is_iterable num_rank_is_power_2 split_list",
    "horovod.common.basics": "HorovodBasics",
    "horovod.common.exceptions": "HorovodInternalError HostsUpdatedInterrupt "
    "HorovodVersionMismatchError",
    "horovod.torch": "_check_has_gpu check_extension",
    "horovod.torch.mpi_ops": "init shutdown is_initialized rank size local_rank local_size "
    "allreduce allreduce_async_ allgather broadcast_ synchronize poll join Average Sum Adasum "
    "HorovodInternalError Compression check_extension gpu_available "
    "handle_average_backwards_compatibility num_rank_is_power_2",
    "horovod.torch.optimizer": "DistributedOptimizer _DistributedOptimizer "
    "_DistributedAdasumOptimizer",
    "horovod.runner.launch": "run_commandline parse_args",
    "horovod.runner.mpi_run": "mpi_available is_open_mpi is_mpich is_intel_mpi is_spectrum_mpi",
    "horovod.runner.gloo_run": "gloo_built",
    "horovod.runner.js_run": "is_jsrun_installed",
}


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module in NAMES for name in NAMES[module].split()]
)
def test_names_that_libraries_import_exist(module: str, name: str) -> None:
    assert hasattr(importlib.import_module(module), name)


def test_the_package_of_very_old_versions_is_not_there() -> None:
    with pytest.raises(ImportError):
        importlib.import_module("horovod.run.runner")


def test_questions_have_one_answer_wherever_they_are_asked(rank: int, size: int) -> None:
    from horovod.common import util
    from horovod.common.basics import HorovodBasics
    from horovod.torch import mpi_ops

    basics = HorovodBasics(__file__, "mpi_lib")
    assert (basics.rank(), basics.size(), basics.mpi_built()) == (rank, size, hvd.mpi_built())
    assert (mpi_ops.rank(), mpi_ops.size()) == (rank, size)
    assert util.mpi_built(verbose=True) == hvd.mpi_built()
    assert util.gpu_available("torch") == hvd.cuda_built()
    assert util.extension_available("torch") and not util.extension_available("mxnet")
    util.check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", __file__, "mpi_lib_v2")
    with pytest.raises(ImportError, match=r"horovod\.mxnet is not available"):
        util.check_extension("horovod.mxnet", "HOROVOD_WITH_MXNET", __file__)


def test_a_number_by_one_name_is_a_barrier_and_ranks_of_a_set_come_in_any_order(
    rank: int, size: int
) -> None:
    """Ignite's backend."""
    for _ in range(3):
        assert hvd.allreduce(torch.tensor(0), name="barrier").item() == 0
        total = hvd.allreduce(torch.tensor(rank), name="total", op=hvd.Sum)
        assert (total.shape, total.dtype, total.item()) == ((), torch.int64, sum(range(size)))
    if size > 2:
        ends = hvd.add_process_set([size - 1, 0])
        assert (ends.ranks, ends.included()) == ([0, size - 1], rank in (0, size - 1))
        if ends.included():
            assert hvd.allgather(torch.tensor([rank]), process_set=ends).tolist() == ends.ranks
        hvd.remove_process_set(ends)


def test_a_rank_without_init_is_the_error_that_libraries_catch() -> None:
    hvd.shutdown()
    with pytest.raises(ValueError, match="has not been initialized"):
        hvd.rank()
    hvd.init(comm=None)


def make_optimizer(wrapped: Callable[..., torch.optim.Optimizer] | None = None, **more: Any) -> Any:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, hvd.DistributedOptimizer(optimizer, model.named_parameters(), **more)


@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum])
def test_a_wrapped_optimizer_is_recognised_and_says_what_it_was_given(op: int) -> None:
    from horovod.torch.optimizer import _DistributedAdasumOptimizer, _DistributedOptimizer

    _, optimizer = make_optimizer(op=op, backward_passes_per_step=2)
    known = _DistributedAdasumOptimizer if op == hvd.Adasum else _DistributedOptimizer
    assert isinstance(optimizer, known) and isinstance(optimizer, torch.optim.SGD)
    assert type(optimizer).__bases__[0] is torch.optim.SGD
    assert (optimizer.backward_passes_per_step, optimizer.op) == (2, op)
    assert optimizer.process_set is hvd.global_process_set
    assert optimizer.gradient_predivide_factor == 1.0
    optimizer.backward_passes_per_step = 3
    assert optimizer.backward_passes_per_step == 3
    with pytest.raises(ValueError, match="backward_passes_per_step"):
        optimizer.backward_passes_per_step = 0


def test_passes_that_are_set_later_count(size: int) -> None:
    model, optimizer = make_optimizer()
    optimizer.backward_passes_per_step = 2
    for _ in range(2):
        model(torch.ones(1, 3) * (hvd.rank() + 1)).sum().backward()
    optimizer.synchronize()
    assert torch.allclose(model.weight.grad, torch.full((1, 3), 2 * (size + 1) / 2))


def test_a_class_made_of_the_optimizers_first_base_is_torchs(rank: int) -> None:
    """Lightning's LightningOptimizer: it takes over the attributes and drives the original."""
    model, optimizer = make_optimizer()
    hvd.broadcast_parameters(model.state_dict(), 0)
    base = type(optimizer).__bases__[0]
    other = object.__new__(type("Lightning" + base.__name__, (base,), {}))
    vars(other).update(vars(optimizer))
    for _ in range(2):
        other.zero_grad()
        model(torch.full((1, 3), float(rank))).sum().backward()
        optimizer.step()
    weights = hvd.allgather(model.weight.detach())
    assert torch.equal(weights, weights[:1].expand_as(weights))


def test_a_gradient_that_is_started_by_hand_is_reduced_once(rank: int, size: int) -> None:
    model, optimizer = make_optimizer()
    model.weight.grad = torch.full((1, 3), float(rank))
    assert hasattr(optimizer, "_allreduce_grad_async")
    optimizer._allreduce_grad_async(model.weight)
    optimizer._allreduce_grad_async(model.weight)
    optimizer.synchronize()
    assert torch.allclose(model.weight.grad, torch.full((1, 3), (size - 1) / 2))


NOT_TENSORS = (None, 3.0, [1.0, 2.0])
ONE = (
    "allreduce allreduce_async allreduce_ allreduce_async_ allgather allgather_async alltoall "
    "alltoall_async reducescatter reducescatter_async"
).split()


@pytest.mark.parametrize("value", NOT_TENSORS, ids=str)
def test_what_is_no_tensor_is_named(value: object) -> None:
    for name in ONE:
        with pytest.raises(TypeError, match="expected a tensor, got"):
            getattr(hvd, name)(value)
    for name in ("broadcast", "broadcast_", "broadcast_async", "broadcast_async_"):
        with pytest.raises(TypeError, match="expected a tensor, got"):
            getattr(hvd, name)(value, 0)
    for name in ("grouped_allreduce", "grouped_allgather", "grouped_reducescatter"):
        with pytest.raises(TypeError, match="expected a tensor, got"):
            getattr(hvd, name)([torch.ones(1), value])
    with pytest.raises(TypeError, match="expected a tensor, got"):
        hvd.sparse_allreduce_async(value, "sparse", hvd.Sum)


def test_a_reducescatter_by_adasum_is_horovods_error() -> None:
    with pytest.raises(HorovodInternalError, match="Adasum"):
        hvd.reducescatter(torch.ones(4), op=hvd.Adasum)


def test_a_fresh_optimizer_has_gradients_after_its_broadcast(rank: int) -> None:
    model = torch.nn.Linear(3, 1)
    model.bias.requires_grad_(False)
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.5)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), 0)
    before = model.weight.detach().clone()
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert torch.equal(model.weight.grad, torch.zeros(1, 3)) and model.bias.grad is None
    assert torch.equal(hvd.broadcast(model.weight.grad, 0), torch.zeros(1, 3))
    assert torch.equal(model.weight, before)


def test_parameter_groups_that_differ_are_an_error_on_every_rank(rank: int, size: int) -> None:
    if size == 1:
        pytest.skip("needs two ranks")
    a, b = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    together: list[Any] = [{"params": [*a.parameters(), *b.parameters()]}]
    apart: list[Any] = [{"params": list(a.parameters())}, {"params": list(b.parameters())}]
    optimizer = torch.optim.SGD(apart if rank == 0 else together, lr=0.1)
    expected = r"got 2 groups of \[2, 2\] parameters on rank 0 and 1 of \[4\] on rank 1"
    with pytest.raises(ValueError, match=expected):
        hvd.broadcast_optimizer_state(optimizer, 0)


def test_each_init_of_a_process_keeps_its_timeline(
    restart: Callable[..., Any], rank: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from horovod.common import timeline

    folder = Path(hvd.broadcast_object(str(tmp_path_factory.mktemp("timelines")), 0))
    for _ in range(2):
        restart({"HOROVOD_TIMELINE": str(folder / "t.json")})
        hvd.allreduce(torch.ones(1), name="x")
    restart({})
    hvd.barrier()
    texts = [(folder / name).read_text() for name in ("t.json", "t.1.json")]
    assert all("allreduce.x" in text for text in texts)
    assert timeline.files.claim("", keep=True) == ""
