"""A GAN learns a distribution of points: two optimizers whose parameters have equal names.

horovodrun -np 2 python gan.py --steps 600
"""

from __future__ import annotations

import argparse

import torch
from torch import nn, optim

import horovod.torch as hvd

parser = argparse.ArgumentParser(description="GAN")
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--steps", type=int, default=600)
parser.add_argument("--nz", type=int, default=4, help="size of the noise")
parser.add_argument("--lr", type=float, default=0.002)
parser.add_argument("--beta1", type=float, default=0.5)
parser.add_argument("--save", default="", help="folder for every rank's models")

CENTRE = torch.tensor([3.0, -2.0])


def distributed(net: nn.Module, args: argparse.Namespace) -> optim.Optimizer:
    optimizer = optim.Adam(net.parameters(), lr=args.lr, betas=(args.beta1, 0.999))
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters())


def main() -> None:
    args = parser.parse_args()
    hvd.init()
    torch.manual_seed(hvd.rank())
    torch.set_num_threads(1)
    generator = nn.Sequential(nn.Linear(args.nz, 32), nn.ReLU(), nn.Linear(32, 2))
    discriminator = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    generator_optimizer = distributed(generator, args)
    discriminator_optimizer = distributed(discriminator, args)
    criterion = nn.BCEWithLogitsLoss()
    real_label, fake_label = torch.ones(args.batch_size, 1), torch.zeros(args.batch_size, 1)

    for step in range(args.steps):
        real = CENTRE + 0.5 * torch.randn(args.batch_size, 2)
        fake = generator(torch.randn(args.batch_size, args.nz))

        discriminator_optimizer.zero_grad()
        loss = criterion(discriminator(real), real_label)
        loss = loss + criterion(discriminator(fake.detach()), fake_label)
        loss.backward()
        discriminator_optimizer.step()

        generator_optimizer.zero_grad()
        discriminator.requires_grad_(False)
        criterion(discriminator(fake), real_label).backward()
        discriminator.requires_grad_(True)
        generator_optimizer.step()

        if step % 100 == 99:
            centre = hvd.allreduce(fake.detach().mean(0), name="centre")
            if hvd.rank() == 0:
                print(f"[{step + 1}/{args.steps}] centre: {centre[0]:.2f} {centre[1]:.2f}")

    if args.save:
        state = {"generator": generator.state_dict(), "discriminator": discriminator.state_dict()}
        torch.save(state, f"{args.save}/rank-{hvd.rank()}.pt")


if __name__ == "__main__":
    main()
