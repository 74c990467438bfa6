"""Images per second on made-up data, as the synthetic benchmarks for Horovod go.

horovodrun -np 2 python synthetic_benchmark.py --num-iters 10
"""

from __future__ import annotations

import argparse
import timeit

import numpy as np
import torch
from torch import nn, optim
from torch.nn import functional

import horovod.torch as hvd

parser = argparse.ArgumentParser(
    description="Synthetic benchmark", formatter_class=argparse.ArgumentDefaultsHelpFormatter
)
parser.add_argument("--fp16-allreduce", action="store_true", help="compress gradients")
parser.add_argument("--depth", type=int, default=12, help="layers of the model")
parser.add_argument("--batch-size", type=int, default=8, help="images per batch")
parser.add_argument("--num-warmup-batches", type=int, default=10, help="batches before timing")
parser.add_argument("--num-batches-per-iter", type=int, default=10, help="batches per reading")
parser.add_argument("--num-iters", type=int, default=10, help="readings")
parser.add_argument("--use-adasum", action="store_true", help="combine by Adasum")
parser.add_argument("--save", default="", help="folder for every rank's model")


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv(functional.relu(self.norm(x)))


def main() -> None:
    args = parser.parse_args()
    hvd.init()
    torch.set_num_threads(1)
    body = [Residual(8) for _ in range(args.depth)]
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        *body,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 10),
    )
    lr_scaler = hvd.size() if not args.use_adasum else 1
    optimizer = optim.SGD(model.parameters(), lr=0.01 * lr_scaler)
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=compression,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    data = torch.randn(args.batch_size, 3, 8, 8)
    target = torch.LongTensor(args.batch_size).random_() % 10

    def benchmark_step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(data), target).backward()
        optimizer.step()

    def log(text: str) -> None:
        if hvd.rank() == 0:
            print(text)

    log(f"Batch size: {args.batch_size}")
    log(f"Number of CPUs: {hvd.size()}")
    log("Running warmup...")
    timeit.timeit(benchmark_step, number=args.num_warmup_batches)
    log("Running benchmark...")
    img_secs = []
    for x in range(args.num_iters):
        time = timeit.timeit(benchmark_step, number=args.num_batches_per_iter)
        img_sec = args.batch_size * args.num_batches_per_iter / time
        log(f"Iter #{x}: {img_sec:.1f} img/sec per CPU")
        img_secs.append(img_sec)
    mean, conf = np.mean(img_secs), 1.96 * np.std(img_secs)
    log(f"Img/sec per CPU: {mean:.1f} +-{conf:.1f}")
    log(f"Total img/sec on {hvd.size()} CPU(s): {hvd.size() * mean:.1f} +-{hvd.size() * conf:.1f}")
    if args.save:
        torch.save(dict(model.named_parameters()), f"{args.save}/rank-{hvd.rank()}.pt")


if __name__ == "__main__":
    main()
