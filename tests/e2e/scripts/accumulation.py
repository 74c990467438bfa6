"""Accumulated gradients, half-precision communication, a warm-up of the learning rate, checkpoints.

horovodrun -np 2 python accumulation.py --batches-per-allreduce 4
"""

from __future__ import annotations

import argparse
import os

import torch
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import horovod.torch as hvd

parser = argparse.ArgumentParser(description="Gradient accumulation")
parser.add_argument("--checkpoint-format", default="checkpoint-{epoch}.pt")
parser.add_argument("--fp16-allreduce", action="store_true")
parser.add_argument("--batches-per-allreduce", type=int, default=4)
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--base-lr", type=float, default=0.01)
parser.add_argument("--warmup-epochs", type=float, default=2)
parser.add_argument("--save", default="", help="folder for every rank's model")


class Metric:
    def __init__(self, name: str) -> None:
        self.name = name
        self.sum = torch.tensor(0.0)
        self.n = torch.tensor(0.0)

    def update(self, value: torch.Tensor) -> None:
        self.sum += hvd.allreduce(value.detach().cpu(), name=self.name)
        self.n += 1

    @property
    def avg(self) -> float:
        return (self.sum / self.n).item()


def main() -> None:
    args = parser.parse_args()
    allreduce_batch_size = args.batch_size * args.batches_per_allreduce
    hvd.init()
    torch.manual_seed(1)
    torch.set_num_threads(1)

    resume_from_epoch = 0
    for try_epoch in range(args.epochs, 0, -1):
        if os.path.exists(args.checkpoint_format.format(epoch=try_epoch)):
            resume_from_epoch = try_epoch
            break
    resume_from_epoch = hvd.broadcast(
        torch.tensor(resume_from_epoch), root_rank=0, name="resume_from_epoch"
    ).item()

    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.data / 16.0).float(), torch.tensor(digits.target))
    sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(data, batch_size=allreduce_batch_size, sampler=sampler, drop_last=True)

    model = nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )
    lr_scaler = args.batches_per_allreduce * hvd.size()
    optimizer = optim.SGD(
        model.parameters(), lr=args.base_lr * lr_scaler, momentum=0.9, weight_decay=0.00005
    )
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=compression,
        backward_passes_per_step=args.batches_per_allreduce,
    )
    if resume_from_epoch > 0 and hvd.rank() == 0:
        checkpoint = torch.load(args.checkpoint_format.format(epoch=resume_from_epoch))
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    for epoch in range(resume_from_epoch, args.epochs):
        model.train()
        sampler.set_epoch(epoch)
        train_loss, train_accuracy = Metric("train_loss"), Metric("train_accuracy")
        for batch_idx, (data, target) in enumerate(loader):
            adjust_learning_rate(args, optimizer, epoch + batch_idx / len(loader))
            optimizer.zero_grad()
            for i in range(0, len(data), args.batch_size):
                data_batch, target_batch = (
                    data[i : i + args.batch_size],
                    target[i : i + args.batch_size],
                )
                output = model(data_batch)
                train_accuracy.update((output.argmax(1) == target_batch).float().mean())
                loss = functional.cross_entropy(output, target_batch)
                train_loss.update(loss)
                loss.div_(len(data) / args.batch_size)
                loss.backward()
            optimizer.step()
        if hvd.rank() == 0:
            print(
                f"Train Epoch #{epoch + 1}: loss={train_loss.avg:.4f} "
                f"accuracy={100.0 * train_accuracy.avg:.2f}%"
            )
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, args.checkpoint_format.format(epoch=epoch + 1))

    if args.save:
        torch.save(model.state_dict(), f"{args.save}/rank-{hvd.rank()}.pt")


def adjust_learning_rate(
    args: argparse.Namespace, optimizer: optim.Optimizer, epoch: float
) -> None:
    """Raise the rate from that of one process to that of all in the first epochs."""
    factor = 1.0
    if epoch < args.warmup_epochs:
        factor = 1.0 / hvd.size() * (epoch * (hvd.size() - 1) / args.warmup_epochs + 1)
    for group in optimizer.param_groups:
        group["lr"] = args.base_lr * hvd.size() * args.batches_per_allreduce * factor


if __name__ == "__main__":
    main()
