"""What one rank alone gets wrong is refused at the call, before any communication."""

from __future__ import annotations

import os
import signal
import threading

import pytest
import torch

import horovod.torch as hvd
from tiers.between_ranks import barrier


def test_a_name_in_flight_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        for _ in range(1000):
            hvd.allreduce_async(torch.ones(100_000), name="twice")
    hvd.barrier()


def test_non_contiguous_tensors_are_refused() -> None:
    tensor = torch.ones(4, 4).t()[1:]
    for call in (hvd.allreduce, hvd.allreduce_, hvd.allgather):
        with pytest.raises(ValueError, match="required to be contiguous"):
            call(tensor)
    with pytest.raises(ValueError, match="required to be contiguous"):
        hvd.broadcast_(tensor, 0)


def test_tensors_whose_memory_is_something_else_are_refused() -> None:
    opposite = torch.tensor([2.0 - 1.0j]).conj().imag
    assert opposite.is_neg()
    empty = torch.ones(3)
    empty.untyped_storage().resize_(0)
    for _ in range(3):
        for call in (hvd.allreduce, hvd.allreduce_, hvd.allgather, hvd.allreduce_async):
            with pytest.raises(ValueError, match=r"resolve_neg"):
                call(opposite, name="opposite")
            with pytest.raises(ValueError, match=r"expected a tensor with memory"):
                call(empty, name="empty")
        with pytest.raises(ValueError, match=r"expected a tensor with memory"):
            hvd.grouped_allreduce([torch.ones(2), empty], name="group")
        assert hvd.allreduce(torch.ones(0), name="nothing").numel() == 0


def test_unknown_types_are_refused() -> None:
    with pytest.raises(ValueError, match=r"complex64: expected one of uint8"):
        hvd.allreduce(torch.ones(2, dtype=torch.complex64))


def test_sparse_and_meta_tensors_are_refused() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        hvd.allreduce(torch.ones(2, 2).to_sparse())
    with pytest.raises(ValueError, match="tensor on meta"):
        hvd.allreduce(torch.ones(2, device="meta"))


def test_an_unknown_root_is_refused(size: int) -> None:
    for root in (-1, size):
        with pytest.raises(ValueError, match=str(root)):
            hvd.broadcast(torch.ones(1), root)


def test_bool_cannot_be_averaged_or_scaled() -> None:
    with pytest.raises(ValueError, match="bool"):
        hvd.allreduce(torch.ones(2, dtype=torch.bool), op=hvd.Sum, prescale_factor=2.0)


def test_scalars_cannot_be_gathered() -> None:
    with pytest.raises((ValueError, hvd.HorovodInternalError)):
        hvd.allgather(torch.tensor(1.0))
    hvd.barrier()


def test_wrong_reductions_are_refused() -> None:
    with pytest.raises(ValueError, match="expected Average"):
        hvd.allreduce(torch.ones(2), op=17)


def test_an_interrupted_wait_leaves_the_job_usable(rank: int, size: int) -> None:
    """Ctrl-C in a wait is seen at once; the operation's memory lives until it is complete."""
    if size > 1 and rank == 0:
        handle = hvd.allreduce_async(torch.ones(100_000), name="interrupted")
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            hvd.synchronize(handle)
        barrier()
    elif size > 1:
        barrier()
        hvd.allreduce(torch.ones(100_000), name="interrupted")
    for _ in range(3):
        assert torch.equal(hvd.allreduce(torch.ones(3)), torch.ones(3))


def test_an_interrupted_repetition_leaves_the_job_usable(rank: int, size: int) -> None:
    """The same of an operation that is prepared, started and waited for in one call."""
    tensor = torch.ones(100_000)
    for _ in range(3):
        hvd.allreduce_(tensor, name="interrupted.too")
    if size > 1 and rank == 0:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            hvd.allreduce_(tensor, name="interrupted.too")
        del tensor
        barrier()
    elif size > 1:
        barrier()
        hvd.allreduce_(tensor, name="interrupted.too")
    for _ in range(3):
        assert torch.equal(hvd.allreduce(torch.ones(3), name="interrupted.not"), torch.ones(3))


def test_refused_requests_do_not_shift_the_numbers_of_unnamed_operations(rank: int) -> None:
    if rank == 0:
        with pytest.raises(ValueError, match="contiguous"):
            hvd.allreduce(torch.ones(4, 4).t()[1:])
    assert torch.equal(hvd.allreduce(torch.ones(3)), torch.ones(3))
