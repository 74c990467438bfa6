"""Train a small network on scikit-learn's handwritten digits, on any number of ranks.

    horovodrun -np 2 python examples/digits/train.py
    mpirun -np 2 python examples/digits/train.py --epochs 40 --output checkpoints

A script to start from: the numbered remarks are the eight steps of docs/distributed.md. Nothing in
here knows of tuning: HOROVOD_AUTOTUNE=1 HOROVOD_AUTOTUNE_LOG=log.csv does that from outside.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import horovod.torch as hvd

TEST_IMAGES = 297


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Return (training set, test set): 1,500 and 297 images of 8 x 8, pixels in [0, 1]."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(digits.images / 16.0, dtype=torch.float32).unsqueeze(1)[order]
    labels = torch.tensor(digits.target, dtype=torch.int64)[order]
    train = TensorDataset(images[:-TEST_IMAGES], labels[:-TEST_IMAGES])
    return train, TensorDataset(images[-TEST_IMAGES:], labels[-TEST_IMAGES:])


def make_model() -> nn.Module:
    """Return a network of five layers: ten parameter tensors, 59,018 numbers."""
    layers: list[nn.Module] = [nn.Flatten(), nn.Linear(64, 128), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Linear(128, 128), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(128, 10))


def train_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[Sequence[torch.Tensor]]
) -> None:
    """Take one step for each batch."""
    model.train()
    for images, labels in batches:
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def evaluate(model: nn.Module, loader: DataLoader) -> float:
    """Return the share of test images that all ranks together classify right."""
    model.eval()
    counts = torch.zeros(2)
    with torch.no_grad():
        for images, labels in loader:
            hits = (model(images).argmax(dim=1) == labels).sum()
            counts += torch.tensor([float(hits), float(len(labels))])
    right, seen = hvd.allreduce(counts, name="test_counts", op=hvd.Sum)
    return float(right / seen)


def save(folder: Path, epoch: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Replace the checkpoint in one step, so that a killed job leaves a whole one."""
    state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, folder / "checkpoint.part")
    (folder / "checkpoint.part").replace(folder / "checkpoint.pt")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this script's options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=16, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one rank")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=1, help="of the first weights")
    parser.add_argument("--output", type=Path, help="folder for a checkpoint per epoch")
    return parser


def train(model: nn.Module, arguments: argparse.Namespace) -> float:
    """Train, test after each epoch, and keep a checkpoint where a folder is given.

    Returns:
        The share of test images that the last epoch's model classifies right.
    """
    torch.set_num_threads(1)  # 1. one rank, one core; with GPUs: torch.cuda.set_device(...)

    train_set, test_set = load_data()
    sampler = DistributedSampler(  # 2. every rank has its share of the data
        train_set, num_replicas=hvd.size(), rank=hvd.rank(), drop_last=True
    )
    batches = DataLoader(  # 3. the batch is one rank's: the job's is size() times as large
        train_set, arguments.batch_size, sampler=sampler, drop_last=True
    )
    shard = Subset(test_set, range(hvd.rank(), len(test_set), hvd.size()))
    test = DataLoader(shard, batch_size=64)

    optimizer = torch.optim.SGD(  # 4. the learning rate follows the job's batch
        model.parameters(), lr=arguments.lr * hvd.size(), momentum=arguments.momentum
    )
    start = 0
    checkpoint = arguments.output / "checkpoint.pt" if arguments.output else None
    if checkpoint and hvd.rank() == 0 and checkpoint.exists():  # 8. a restarted job goes on
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["epoch"] + 1
    start = hvd.broadcast_object(start, root_rank=0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # 6. all ranks begin alike
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(  # 5. gradients are averaged over all ranks
        optimizer, named_parameters=model.named_parameters()
    )

    if arguments.output and hvd.rank() == 0:
        arguments.output.mkdir(parents=True, exist_ok=True)
    accuracy = 0.0
    for epoch in range(start, arguments.epochs):
        sampler.set_epoch(epoch)
        train_epoch(model, optimizer, batches)
        accuracy = evaluate(model, test)
        if hvd.rank() == 0:  # 7. one rank speaks and writes
            print(f"epoch {epoch + 1:3}: test accuracy {accuracy:.1%}", flush=True)
            if arguments.output:
                save(arguments.output, epoch, model, optimizer)
    return accuracy


def main() -> None:
    """Run the job on this rank."""
    arguments = make_parser().parse_args()
    hvd.init()
    torch.manual_seed(arguments.seed)
    train(make_model(), arguments)
    hvd.shutdown()


if __name__ == "__main__":
    main()
