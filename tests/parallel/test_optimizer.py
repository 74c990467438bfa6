"""DistributedOptimizer: n ranks on shards give what one rank gives on the whole batch."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

import horovod.torch as hvd
from horovod import _engine
from horovod.common import basics
from parallel.training import (
    SGD,
    assert_same_weights,
    batches,
    loss_of,
    model,
    shard,
    train_whole,
    wrap,
)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW])
def test_shards_give_the_weights_of_the_whole_batch(make: type, named: bool) -> None:
    net = model()
    optimizer = hvd.DistributedOptimizer(
        make(net.parameters(), lr=0.05), net.named_parameters() if named else None
    )
    for x, y in batches(10):
        optimizer.zero_grad()
        loss_of(net, shard(x), shard(y)).backward()
        optimizer.step()
    assert_same_weights(net, train_whole(10, make, lr=0.05))


def test_parameters_that_change_all_the_while_change_no_weight(two_ranks: None, rank: int) -> None:
    hvd.shutdown()
    hvd.init()
    net, rng = model(), np.random.default_rng(5)
    optimizer = wrap(net)
    engine = basics.engine()
    first, epoch = engine.epoch(), engine.epoch()
    for x, y in batches(60):
        params = _engine.Params(
            fusion_threshold_bytes=int(rng.choice([0, 100, 1000, 10_000, 1 << 20, 1 << 29])),
            cycle_time_ms=float(rng.choice([0.0, 0.1, 1.0, 5.0])),
            cache_capacity=int(rng.choice([0, 2, 8, 1024])),
            hierarchical_allreduce=bool(rng.integers(2)),
            hierarchical_allgather=False,
        )
        if rank == 0:
            epoch += 1
            engine.propose(epoch, params)
        optimizer.zero_grad()
        loss_of(net, shard(x), shard(y)).backward()
        optimizer.step()
    assert engine.epoch() > first + 20
    assert_same_weights(net, train_whole(60, **SGD))


@pytest.mark.parametrize("passes", [1, 2, 4])
def test_accumulated_passes_sum_locally(passes: int) -> None:
    net, reference = model(), model()
    optimizer = wrap(net, backward_passes_per_step=passes)
    whole = torch.optim.SGD(reference.parameters(), **SGD)
    data = list(batches(3 * passes))
    for step in range(3):
        optimizer.zero_grad()
        whole.zero_grad()
        for x, y in data[step * passes : (step + 1) * passes]:
            loss_of(net, shard(x), shard(y)).backward()
            loss_of(reference, x, y).backward()
        optimizer.step()
        whole.step()
    assert_same_weights(net, reference)


@pytest.mark.parametrize("passes", [1, 2, 4])
def test_a_step_is_one_step_whatever_the_passes(passes: int, rank: int) -> None:
    """C7: the tuner counts optimizer steps, not backward passes."""
    hvd.shutdown()
    hvd.init()
    net = model()
    optimizer = wrap(net, backward_passes_per_step=passes)
    data = list(batches(passes))
    for step in range(6):
        optimizer.zero_grad()
        for x, y in data:
            loss_of(net, shard(x), shard(y)).backward()
        optimizer.step()
        if step == 0:  # in which ranks tell each other what gradients they have
            basics.engine().drain_steps()
    records, _ = basics.engine().drain_steps()
    assert sum(record.count for record in records) == 5
    bytes_of_a_step = sum(p.numel() * 8 for p in net.parameters()) * (hvd.size() > 1)
    assert all(r.payload_bytes == bytes_of_a_step * r.count for r in records)


def test_a_second_optimizer_ends_no_step(rank: int) -> None:
    hvd.shutdown()
    hvd.init()
    first, second = model(), model()
    optimizers = [wrap(first), hvd.DistributedOptimizer(torch.optim.SGD(second.parameters(), 0.1))]
    for x, y in batches(4):
        for net, optimizer in zip((first, second), optimizers, strict=True):
            optimizer.zero_grad()
            loss_of(net, shard(x), shard(y)).backward()
            optimizer.step()
    hvd.autotune.step()
    records, _ = basics.engine().drain_steps()
    assert sum(record.count for record in records) == 4


def test_one_pass_too_many_is_an_error(two_ranks: None) -> None:
    net = model()
    optimizer = wrap(net)
    x, y = next(batches(1))
    loss_of(net, shard(x), shard(y)).backward()
    with pytest.raises(AssertionError, match="backward_passes_per_step"):
        loss_of(net, shard(x), shard(y)).backward()
    optimizer.synchronize()


def test_fewer_passes_than_announced_are_reduced_all_the_same(size: int) -> None:
    net = model()
    optimizer = wrap(net, backward_passes_per_step=3)
    x, y = next(batches(1))
    loss_of(net, shard(x), shard(y)).backward()
    optimizer.synchronize()
    reference = model()
    loss_of(reference, x, y).backward()
    for parameter, right in zip(net.parameters(), reference.parameters(), strict=True):
        assert (parameter.grad - right.grad).abs().max() < 1e-12


def test_zero_grad_has_torchs_own_signature(two_ranks: None) -> None:
    """C6."""
    net = model()
    optimizer = wrap(net)
    x, y = next(batches(1))
    loss_of(net, shard(x), shard(y)).backward()
    with pytest.raises(AssertionError, match=r"optimizer\.zero_grad\(\) was called"):
        optimizer.zero_grad()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    assert all((p.grad == 0).all() for p in net.parameters())
    optimizer.zero_grad(set_to_none=True)
    assert all(p.grad is None for p in net.parameters())


def test_manual_synchronize_needs_the_context() -> None:
    net = model()
    optimizer = wrap(net)
    x, y = next(batches(1))
    loss_of(net, shard(x), shard(y)).backward()
    optimizer.synchronize()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with optimizer.skip_synchronize():
            optimizer.step()
    optimizer.zero_grad()
    loss_of(net, shard(x), shard(y)).backward()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match=r"optimizer\.step\(\) called without optimizer\.skip_syn"):
        optimizer.step()


def test_a_parameter_without_gradient_is_reduced_as_zero(rank: int, size: int) -> None:
    used, unused = torch.nn.Linear(2, 1, bias=False), torch.nn.Linear(2, 1, bias=False)
    pairs = [("used", used.weight), ("unused", unused.weight)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p for _, p in pairs], lr=1.0), pairs)
    hvd.broadcast_parameters(pairs, 0)
    before = unused.weight.detach().clone()
    net = unused if rank == 0 and size > 1 else used
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    expected = before - (1.0 / size if size > 1 else 0.0)
    torch.testing.assert_close(unused.weight.detach(), expected)


def test_compressed_gradients_keep_their_type() -> None:
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        net, reference = model(), model()
        optimizer = wrap(net, compression=compression)
        x, y = next(batches(1))
        loss_of(net, shard(x), shard(y)).backward()
        optimizer.synchronize()
        loss_of(reference, x, y).backward()
        for parameter, right in zip(net.parameters(), reference.parameters(), strict=True):
            assert parameter.grad.dtype == torch.float64
            torch.testing.assert_close(parameter.grad, right.grad, rtol=0.05, atol=0.01)


def test_predivided_gradients_average_alike() -> None:
    net = model()
    optimizer = wrap(net, gradient_predivide_factor=4.0)
    for x, y in batches(3):
        optimizer.zero_grad()
        loss_of(net, shard(x), shard(y)).backward()
        optimizer.step()
    assert_same_weights(net, train_whole(3, **SGD))
    with pytest.raises(ValueError, match="only with op=Average"):
        wrap(model(), op=hvd.Sum, gradient_predivide_factor=2.0)


def test_a_closure_is_reduced_too() -> None:
    net, reference = model(), model()
    optimizer = wrap(net)
    whole = torch.optim.SGD(reference.parameters(), **SGD)
    for x, y in batches(3):

        def closure(
            net: torch.nn.Module,
            optimizer: torch.optim.Optimizer,
            x: torch.Tensor,
            y: torch.Tensor,
        ) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(net, x, y)
            loss.backward()
            return loss

        sharded = shard(x), shard(y)
        loss = optimizer.step(lambda s=sharded: closure(net, optimizer, *s))
        whole.step(lambda x=x, y=y: closure(reference, whole, x, y))
        assert loss.item() > 0
    assert_same_weights(net, reference)


def test_schedulers_see_an_optimizer_of_the_wrapped_class() -> None:
    net = model()
    optimizer = wrap(net)
    assert isinstance(optimizer, torch.optim.SGD)
    assert type(optimizer).__name__ == "SGD"
    assert not type(optimizer).__module__.startswith("torch.optim")
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for x, y in batches(2):
        optimizer.zero_grad()
        loss_of(net, shard(x), shard(y)).backward()
        optimizer.step()
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == SGD["lr"] / 4


def test_step_hooks_run_once() -> None:
    net = model()
    optimizer = wrap(net)
    calls = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    x, y = next(batches(1))
    loss_of(net, shard(x), shard(y)).backward()
    optimizer.step()
    assert calls == [1]


def test_names_are_checked() -> None:
    net = model()
    plain = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="tuples"):
        hvd.DistributedOptimizer(plain, net.parameters())
    pairs = list(net.named_parameters())
    with pytest.raises(ValueError, match=r"unique; found 0\.weight"):
        hvd.DistributedOptimizer(plain, [*pairs, pairs[0]])
    with pytest.raises(ValueError, match=r"1 of the optimizer's 14 parameters are not named"):
        hvd.DistributedOptimizer(plain, pairs[1:])
    with pytest.raises(ValueError, match="backward_passes_per_step"):
        hvd.DistributedOptimizer(plain, pairs, backward_passes_per_step=0)
    assert set(wrap(net)._parameter_names.values()) == {name for name, _ in pairs}


def test_passes_can_change() -> None:
    net, reference = model(), model()
    optimizer = wrap(net)
    whole = torch.optim.SGD(reference.parameters(), **SGD)
    optimizer.set_backward_passes_per_step(2)
    for x, y in batches(2):
        loss_of(net, shard(x), shard(y)).backward()
        loss_of(reference, x, y).backward()
    optimizer.step()
    whole.step()
    assert_same_weights(net, reference)


def test_an_added_group_is_reduced_too(rank: int, size: int) -> None:
    net, late = model(), torch.nn.Parameter(torch.ones(3))
    optimizer = wrap(net)
    optimizer.add_param_group({"params": [late], "lr": 1.0})
    (late * (rank + 1)).sum().backward()
    optimizer.step()
    torch.testing.assert_close(late.detach(), torch.ones(3) - (size + 1) / 2)


def test_loading_a_state_forgets_gradients_on_their_way() -> None:
    net = model()
    optimizer = wrap(net)
    state = optimizer.state_dict()
    x, y = next(batches(1))
    loss_of(net, shard(x), shard(y)).backward()
    optimizer.load_state_dict(state)
    optimizer.zero_grad()
    hvd.barrier()
    loss_of(net, shard(x), shard(y)).backward()
    optimizer.step()


def test_a_new_wrapper_takes_over() -> None:
    net = model()
    plain = torch.optim.SGD(net.parameters(), **SGD)
    old = hvd.DistributedOptimizer(plain, net.named_parameters())
    optimizer = hvd.DistributedOptimizer(plain, net.named_parameters())
    for x, y in batches(3):
        optimizer.zero_grad()
        loss_of(net, shard(x), shard(y)).backward()
        optimizer.step()
    assert_same_weights(net, train_whole(3, **SGD))
    if hvd.rank() == 0:
        old.synchronize()  # communicates nothing any more
