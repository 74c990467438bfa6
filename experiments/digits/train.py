"""Trains DigitsNet on scikit-learn's handwritten digits, as Horovod users write it.

    horovodrun -np 2 python experiments/digits/train.py
    mpirun -np 2 python experiments/digits/train.py

Nothing in here knows of tuning: HOROVOD_AUTOTUNE=1 HOROVOD_AUTOTUNE_LOG=log.csv does that.
``--stats`` writes what compare.py needs: step times, the settings in force on every rank, accuracy.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from model import DigitsNet
from sklearn.datasets import load_digits
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import horovod.torch as hvd

TEST_IMAGES = 297


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Return (training set, test set): 1,500 and 297 images of 8 x 8, pixels in [0, 1]."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = torch.tensor(digits.images[order] / 16.0, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(digits.target[order], dtype=torch.int64)
    split = len(labels) - TEST_IMAGES
    train = TensorDataset(images[:split], labels[:split])
    return train, TensorDataset(images[split:], labels[split:])


def train_epoch(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader
) -> list[float]:
    """Train for one epoch and return the time of each step in ms."""
    model.train()
    times = []
    begin = time.perf_counter()
    for images, labels in loader:
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        end = time.perf_counter()
        times.append(1000 * (end - begin))
        begin = end
    return times


def evaluate(model: torch.nn.Module, loader: DataLoader) -> float:
    """Return the share of test images that all ranks together classify right."""
    model.eval()
    right = torch.zeros(2)
    with torch.no_grad():
        for images, labels in loader:
            hits = (model(images).argmax(dim=1) == labels).sum()
            right += torch.tensor([float(hits), float(len(labels))])
    right = hvd.allreduce(right, name="test_accuracy", op=hvd.Sum)
    return float(right[0] / right[1])


def save_checkpoint(
    folder: Path, epoch: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Write the state that a restarted job needs, in one step (rank 0 only)."""
    state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, folder / "checkpoint.part")
    (folder / "checkpoint.part").replace(folder / "checkpoint.pt")


def write_stats(path: Path, epochs: list[list[float]], accuracy: float) -> None:
    """Write step times (rank 0's) and the settings in force on every rank."""
    settings = hvd.allgather_object(dict(hvd.autotune.status().params))
    if hvd.rank() == 0:
        content = {"step_ms": epochs, "settings": settings, "accuracy": accuracy}
        path.write_text(json.dumps({**content, "ranks": hvd.size()}))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=16, help="images per rank and step")
    parser.add_argument("--width", type=int, default=16, help="channels of the first layers")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one rank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="folder for a checkpoint per epoch")
    parser.add_argument("--stats", type=Path, help="JSON file with step times and settings")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    hvd.init()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)

    train_set, test_set = load_data()
    sampler = DistributedSampler(
        train_set, num_replicas=hvd.size(), rank=hvd.rank(), seed=arguments.seed, drop_last=True
    )
    train = DataLoader(train_set, arguments.batch_size, sampler=sampler, drop_last=True)
    shard = torch.utils.data.Subset(test_set, range(hvd.rank(), len(test_set), hvd.size()))
    test = DataLoader(shard, batch_size=len(shard))

    model = DigitsNet(arguments.width)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=arguments.lr * hvd.size(), momentum=0.9, weight_decay=1e-4
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs)

    if arguments.output and hvd.rank() == 0:
        arguments.output.mkdir(parents=True, exist_ok=True)
    step_ms: list[list[float]] = []
    accuracy = 0.0
    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        step_ms.append(train_epoch(model, optimizer, train))
        schedule.step()
        accuracy = evaluate(model, test)
        if hvd.rank() == 0:
            median = float(np.median(step_ms[-1]))
            print(f"epoch {epoch + 1:3}: test accuracy {accuracy:.1%}, {median:.1f} ms a step")
            if arguments.output:
                save_checkpoint(arguments.output, epoch, model, optimizer)
    if hvd.rank() == 0:
        print(f"test accuracy: {100 * accuracy:.1f} %", flush=True)
    if arguments.stats:
        write_stats(arguments.stats, step_ms, accuracy)
    hvd.shutdown()


if __name__ == "__main__":
    main()
