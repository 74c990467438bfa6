"""DistributedOptimizer together with what PyTorch offers around an optimizer."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable

import pytest
import torch

import horovod.torch as hvd
from parallel.training import (
    SGD,
    assert_equal_on_all_ranks,
    assert_same_weights,
    batches,
    loss_of,
    model,
    shard,
    train_shards,
    train_whole,
    wrap,
)

KINDS = {
    "fused Adam": (torch.optim.Adam, {"lr": 0.01, "fused": True}),
    "fused SGD": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "fused": True}),
    "foreach AdamW": (torch.optim.AdamW, {"lr": 0.01, "foreach": True}),
    "foreach RMSprop": (torch.optim.RMSprop, {"lr": 0.01, "foreach": True}),
    "capturable lr": (torch.optim.Adam, {"lr": torch.tensor(0.01), "foreach": False}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_implementations_of_an_optimizer(kind: str) -> None:
    make, options = KINDS[kind]
    net = model()
    optimizer = hvd.DistributedOptimizer(make(net.parameters(), **copy.deepcopy(options)))
    train_shards(net, optimizer, 5)
    assert_same_weights(net, train_whole(5, make, **options))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_trains_alike(backend: str) -> None:
    net = model()
    compiled = torch.compile(net, backend=backend)
    optimizer = wrap(net)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        train_shards(compiled, optimizer, 3)
    assert_same_weights(net, train_whole(3, **SGD))


def test_clipped_gradients_are_those_of_the_whole_batch() -> None:
    net, reference = model(), model()
    optimizer, plain = wrap(net), torch.optim.SGD(reference.parameters(), **SGD)
    for x, y in batches(4):
        optimizer.zero_grad()
        plain.zero_grad()
        loss_of(net, shard(x), shard(y)).backward()
        loss_of(reference, x, y).backward()
        optimizer.synchronize()
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.05)
        torch.testing.assert_close(
            norm, torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.05)
        )
        with optimizer.skip_synchronize():
            optimizer.step()
        plain.step()
    assert_same_weights(net, reference)


def scaled_step_by_hand(
    optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, net: torch.nn.Module
) -> None:
    """Horovod's documented way, which allows for clipping."""
    optimizer.synchronize()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1e6)
    with optimizer.skip_synchronize():
        scaler.step(optimizer)


def scaled_step(
    optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, net: torch.nn.Module
) -> None:
    """What a script does that knows nothing of Horovod."""
    scaler.step(optimizer)


def unscaled_step(
    optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, net: torch.nn.Module
) -> None:
    """What such a script does to clip gradients."""
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1e6)
    scaler.step(optimizer)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("step", [scaled_step_by_hand, scaled_step, unscaled_step])
def test_a_scaler_skips_the_same_steps_on_all_ranks(
    step: Callable[..., None], fused: bool, size: int
) -> None:
    """One rank's gradients overflow in step 2: nobody takes it."""
    net, reference = model(), model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), **SGD, fused=fused))
    plain = torch.optim.SGD(reference.parameters(), **SGD)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number, (x, y) in enumerate(batches(6)):
            optimizer.zero_grad()
            loss = loss_of(net, shard(x), shard(y))
            overflow = number == 2 and hvd.rank() == size - 1
            scaler.scale(loss * (float("inf") if overflow else 1.0)).backward()
            step(optimizer, scaler, net)
            scaler.update()
            if number != 2:
                plain.zero_grad()
                loss_of(reference, x, y).backward()
                plain.step()
    assert scaler.get_scale() == 2.0**10
    assert_same_weights(net, reference)


@pytest.mark.parametrize("enabled", [False, True])
def test_gradients_that_are_unscaled_and_clipped_are_those_of_the_whole_batch(
    enabled: bool,
) -> None:
    net, reference = model(), model()
    optimizer, plain = wrap(net), torch.optim.SGD(reference.parameters(), **SGD)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=enabled)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x, y in batches(4):
            optimizer.zero_grad()
            plain.zero_grad()
            scaler.scale(loss_of(net, shard(x), shard(y))).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.05)
            scaler.step(optimizer)
            scaler.update()
            loss_of(reference, x, y).backward()
            torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.05)
            plain.step()
    assert_same_weights(net, reference)


CHANGES: dict[str, Callable[[torch.nn.Module], object]] = {
    "clip_grad_norm_": lambda net: torch.nn.utils.clip_grad_norm_(net.parameters(), 0.05),
    "clip_grad_value_": lambda net: torch.nn.utils.clip_grad_value_(net.parameters(), 1e-4),
    "div_": lambda net: [p.grad.div_(2) for p in net.parameters() if p.grad is not None],
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("options", [{}, {"compression": hvd.Compression.fp16}, {"groups": 2}])
def test_gradients_changed_on_their_way_are_an_error_that_names_the_remedy(
    change: str, options: dict[str, object], two_ranks: None
) -> None:
    net = model()
    optimizer = wrap(net, **options)
    x, y = next(batches(1))
    for _ in range(2):  # the optimizer can be used again
        loss_of(net, shard(x), shard(y)).backward()
        CHANGES[change](net)
        with pytest.raises(AssertionError, match=r"changed after loss.backward.*synchronize\(\)"):
            optimizer.step()
        optimizer.zero_grad()
    train_shards(net, optimizer, 1)
    assert_equal_on_all_ranks(net)


def test_the_documented_scaler_after_a_skipped_step_warns_of_nothing() -> None:
    net = model()
    optimizer = wrap(net)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    x, y = next(batches(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaler.scale(loss_of(net, shard(x), shard(y)) * float("nan")).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        loss_of(net, shard(x), shard(y)).backward()
        optimizer.step()
    assert_equal_on_all_ranks(net)


@pytest.mark.parametrize("first", ["scheduler", "wrapper"])
def test_schedulers_warn_of_nothing(first: str) -> None:
    net = model()
    optimizer: torch.optim.Optimizer = torch.optim.SGD(net.parameters(), **SGD)
    if first == "wrapper":
        optimizer = hvd.DistributedOptimizer(optimizer, net.named_parameters())
    schedulers = [
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch),
        torch.optim.lr_scheduler.MultiStepLR(optimizer, [2], gamma=0.1),
    ]
    if first == "scheduler":
        optimizer = hvd.DistributedOptimizer(optimizer, net.named_parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            train_shards(net, optimizer, 1)
            for scheduler in schedulers:
                scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(SGD["lr"] * 0.25 * 0.1)


def test_a_one_cycle_scheduler_sets_the_momentum() -> None:
    net = model()
    optimizer = wrap(net)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10)
    train_shards(net, optimizer, 1)
    scheduler.step()
    assert optimizer.param_groups[0]["momentum"] != SGD["momentum"]
    reduce = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    before = optimizer.param_groups[0]["lr"]
    for _ in range(3):
        reduce.step(1.0)
    assert optimizer.param_groups[0]["lr"] < before


@pytest.mark.parametrize("saved", ["plain", "distributed"])
@pytest.mark.parametrize("loaded", ["plain", "distributed"])
def test_states_are_exchanged_with_the_plain_optimizer(saved: str, loaded: str, rank: int) -> None:
    def make(kind: str, net: torch.nn.Module) -> torch.optim.Optimizer:
        plain = torch.optim.Adam(net.parameters(), lr=0.01)
        return plain if kind == "plain" else hvd.DistributedOptimizer(plain)

    net = model()
    optimizer = make(saved, net)
    train_shards(net, optimizer, 2)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    other = model()
    optimizer.param_groups[0]["lr"] = 0.5  # not that of the file
    again = make(loaded, other)
    again.load_state_dict(torch.load(file))
    assert again.param_groups[0]["lr"] == 0.01
    state, expected = again.state_dict()["state"], optimizer.state_dict()["state"]
    torch.testing.assert_close(state, expected, rtol=0, atol=0)
    train_shards(other, again, 1)


def test_a_scheduler_of_the_plain_optimizer_outlives_a_loaded_state() -> None:
    net = model()
    plain = torch.optim.SGD(net.parameters(), **SGD)
    scheduler = torch.optim.lr_scheduler.StepLR(plain, 1, gamma=0.5)
    optimizer = hvd.DistributedOptimizer(plain, net.named_parameters())
    optimizer.load_state_dict(optimizer.state_dict())
    train_shards(net, optimizer, 1)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == SGD["lr"] / 2


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs_takes_the_same_decisions_on_all_ranks(search: str | None) -> None:
    def train(
        net: torch.nn.Module, optimizer: torch.optim.Optimizer, part: Callable[..., torch.Tensor]
    ) -> list[float]:
        x, y = next(batches(1))

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(net, part(x), part(y))
            loss.backward()
            return loss

        return [optimizer.step(closure).item() for _ in range(3)]

    options = {"lr": 0.5, "max_iter": 5, "line_search_fn": search, "tolerance_change": 1e-3}
    net, reference = model(), model()
    optimizer = hvd.DistributedOptimizer(torch.optim.LBFGS(net.parameters(), **options))
    losses = train(net, optimizer, shard)
    expected = train(reference, torch.optim.LBFGS(reference.parameters(), **options), lambda t: t)
    assert losses == pytest.approx(expected)
    assert_same_weights(net, reference, 1e-6)


def test_a_failed_reduction_leaves_a_usable_optimizer(two_ranks: None, rank: int) -> None:
    shapes = torch.nn.Parameter(torch.ones(2 + rank)), torch.nn.Parameter(torch.ones(3))
    names = [("differs", shapes[0]), ("same", shapes[1])]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(shapes, lr=1.0), names)
    (shapes[0].sum() + shapes[1].sum()).backward()
    with pytest.raises(hvd.HorovodInternalError, match="differs"):
        optimizer.synchronize()
    optimizer.zero_grad()
    shapes[0].requires_grad_(False)
    shapes[1].sum().backward()
    optimizer.step()
    torch.testing.assert_close(shapes[1].detach(), torch.zeros(3))
