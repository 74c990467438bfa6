"""A library's trainer: silent after its start, with workers that are not forked from it.

horovodrun -np 2 python quiet_trainer.py --standard-error closed
"""

from __future__ import annotations

import argparse
import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import horovod.torch as hvd

parser = argparse.ArgumentParser(description="A quiet trainer")
parser.add_argument("--standard-error", choices=("kept", "devnull", "closed"), default="kept")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--save", default="", help="folder for every rank's model")


def silence(how: str) -> None:
    if how == "devnull":
        sys.stdout = sys.stderr = open(os.devnull, "w")
    elif how == "closed":
        sys.stdout.close()
        sys.stderr.close()


def main() -> None:
    args = parser.parse_args()
    hvd.init()
    silence(args.standard_error)
    torch.set_num_threads(1)
    torch.manual_seed(hvd.rank())
    data = TensorDataset(torch.randn(2000, 16), torch.randn(2000, 1))
    loader = DataLoader(
        data,
        batch_size=4,
        num_workers=1,
        multiprocessing_context="forkserver",
        persistent_workers=True,
    )
    model = nn.Sequential(*[nn.Linear(16, 16) for _ in range(8)], nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for _ in range(args.epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
    torch.save(model.state_dict(), f"{args.save}/rank-{hvd.rank()}.pt")


if __name__ == "__main__":
    main()
