"""Gradients compressed by hand: an optimizer on horovod.torch.mpi_ops alone, as research code has.

horovodrun -np 2 python own_optimizer.py --epochs 8
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

from horovod.torch.mpi_ops import (
    Average,
    allreduce,
    allreduce_async_,
    broadcast_,
    handle_average_backwards_compatibility,
    init,
    local_rank,
    rank,
    shutdown,
    size,
    synchronize,
)

parser = argparse.ArgumentParser(description="Signs of gradients")
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--save", default="", help="folder for every rank's model")


class SignSGD(torch.optim.SGD):
    """Sends the signs of gradients and their mean size; what that loses is added the next time."""

    def __init__(self, model: nn.Module, lr: float) -> None:
        super().__init__(model.parameters(), lr=lr, momentum=0.9)
        self.names = {parameter: name for name, parameter in model.named_parameters()}
        self.lost = {parameter: torch.zeros_like(parameter) for parameter in self.names}
        self.sent: dict[torch.Tensor, int] = {}
        for parameter in self.names:
            parameter.register_post_accumulate_grad_hook(self.send)

    def send(self, parameter: torch.Tensor) -> None:
        wanted = parameter.grad + self.lost[parameter]
        signs = wanted.sign() * wanted.abs().mean()
        self.lost[parameter] = wanted - signs
        op = handle_average_backwards_compatibility(Average, None)
        self.sent[parameter] = allreduce_async_(signs, name=self.names[parameter], op=op)

    def step(self, closure: None = None) -> None:
        for parameter, handle in self.sent.items():
            parameter.grad = synchronize(handle)
        self.sent.clear()
        super().step(closure)


def main() -> None:
    args = parser.parse_args()
    init()
    torch.manual_seed(rank())
    torch.set_num_threads(1)
    digits = load_digits()
    data = torch.tensor(digits.data / 16.0).float()[rank() :: size()]
    target = torch.tensor(digits.target)[rank() :: size()]
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    for parameter in model.parameters():
        broadcast_(parameter.data, 0)
    optimizer = SignSGD(model, lr=0.02)
    batches = min(len(digits.target) // size(), len(data)) // args.batch_size
    for _ in range(args.epochs):
        order = torch.randperm(len(data)).split(args.batch_size)[:batches]
        for batch in order:
            optimizer.zero_grad()
            functional.cross_entropy(model(data[batch]), target[batch]).backward()
            optimizer.step()
        right = (model(data).argmax(1) == target).float().mean()
        accuracy = allreduce(right, name="accuracy").item()
        if rank() == 0 and local_rank() == 0:
            print(f"Accuracy: {100 * accuracy:.1f}%")
    if args.save:
        torch.save(model.state_dict(), f"{args.save}/rank-{rank()}.pt")
    shutdown()


if __name__ == "__main__":
    main()
