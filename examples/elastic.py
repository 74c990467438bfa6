"""Train a small network on scikit-learn's handwritten digits while ranks are lost and others come.

    horovodrun --min-np 1 --host-discovery-script ./hosts.sh python examples/elastic.py

A script to start from: the numbered remarks are the steps of docs/elastic.md, which also says what
to write into hosts.sh and what to try. It runs with any launcher on a fixed number of ranks, too,
on CPUs or GPUs.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import horovod.torch as hvd

TEST_IMAGES = 297


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Return (training set, test set): 1,500 and 297 images of 64 pixels in [0, 1]."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(digits.data / 16.0, dtype=torch.float32)[order]
    labels = torch.tensor(digits.target, dtype=torch.int64)[order]
    train = TensorDataset(images[:-TEST_IMAGES], labels[:-TEST_IMAGES])
    return train, TensorDataset(images[-TEST_IMAGES:], labels[-TEST_IMAGES:])


def count(ranks: int) -> str:
    """Return how people call so many ranks."""
    return f"{ranks} rank" + "s" * (ranks > 1)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this script's options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=10, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one rank")
    parser.add_argument("--commit-every", type=int, default=10, help="steps from commit to commit")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds a step lasts longer")
    return parser


def main() -> None:
    """Run the job on this rank."""
    arguments = make_parser().parse_args()
    hvd.init()
    torch.manual_seed(1)
    torch.set_num_threads(1)  # one rank, one core
    device = torch.device("cpu")
    if torch.cuda.is_available():  # 1. the GPU that this process has, it keeps
        place = int(os.environ.get("HOROVOD_ELASTIC_SLOT", hvd.local_rank()))
        device = torch.device("cuda", place % torch.cuda.device_count())
        torch.cuda.set_device(device)

    # 2. what the state is made of comes before it, and without any collective call
    train_set, test_set = load_data()
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9),
        named_parameters=model.named_parameters(),
    )
    sampler = hvd.elastic.ElasticSampler(train_set)
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, step=0)

    def evaluate() -> float:
        """Return the share of test images that all ranks together classify right."""
        images, labels = (part[hvd.rank() :: hvd.size()].to(device) for part in test_set.tensors)
        with torch.no_grad():
            hits = (model(images).argmax(dim=1) == labels).sum()
        return float(hvd.allreduce(hits, name="hits", op=hvd.Sum)) / len(test_set)

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> float:
        """Go on from the state; called again whenever the ranks have changed."""
        for group in optimizer.param_groups:  # 3. the learning rate follows the number of ranks
            group["lr"] = arguments.lr * hvd.size()
        if hvd.rank() == 0:
            print(
                f"goes on with {count(hvd.size())} at epoch {state.epoch + 1}, step {state.step}: "
                f"{len(sampler.remaining_indices)} images are left of it (process {os.getpid()})",
                flush=True,
            )
        accuracy, began = 0.0, time.monotonic()
        while state.epoch < arguments.epochs:
            for images, labels in DataLoader(train_set, arguments.batch_size, sampler=sampler):
                optimizer.zero_grad()
                functional.cross_entropy(model(images.to(device)), labels.to(device)).backward()
                optimizer.step()
                time.sleep(arguments.pause)
                sampler.record_batch(state.step, len(labels))  # 4. what need not come again
                state.step += 1
                if state.step % arguments.commit_every == 0:
                    state.commit()  # 5. here the job goes on if a rank is lost
            accuracy = evaluate()
            if hvd.rank() == 0:
                seconds = time.monotonic() - began
                print(
                    f"epoch {state.epoch + 1:3}: test accuracy {accuracy:.1%}, "
                    f"{count(hvd.size())}, {seconds:.1f} s",
                    flush=True,
                )
            began = time.monotonic()
            state.epoch += 1
            sampler.set_epoch(state.epoch)  # 6. at the end of an epoch, not at its beginning
            state.commit()
        return accuracy

    train(state)
    hvd.shutdown()


if __name__ == "__main__":
    main()
