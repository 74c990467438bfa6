"""The training of ``job.py`` with PyTorch and ``TorchState``."""

from __future__ import annotations

from typing import Any

import torch

import horovod.torch as hvd
from e2e.elastic.on_arrays import LEARNING_RATE, samples

init = hvd.init
run = hvd.elastic.run


def make_state() -> Any:
    model = torch.nn.Linear(3, 1).double()
    torch.nn.init.constant_(model.weight, 0.0)
    torch.nn.init.constant_(model.bias, 0.0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
        named_parameters=model.named_parameters(),
    )
    return hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)


def train_step(state: Any) -> float:
    x, target = map(torch.from_numpy, samples(state.step))
    state.optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(state.model(x), target)
    loss.backward()
    state.optimizer.step()
    return float(loss.detach())


def weights(state: Any) -> list[float]:
    each = [parameter.detach().flatten() for parameter in state.model.parameters()]
    return [float(number) for number in torch.cat(each)]
