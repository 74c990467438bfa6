"""A language model on texts of different length: ranks that run out of batches join.

horovodrun -np 2 python language_model.py --epochs 4
"""

from __future__ import annotations

import argparse
import math

import torch
from torch import nn, optim
from torch.nn import functional

import horovod.torch as hvd

parser = argparse.ArgumentParser(description="Language model")
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--bptt", type=int, default=16, help="characters of a sequence")
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--clip", type=float, default=1.0)
parser.add_argument("--save", default="", help="folder for every rank's model")

SENTENCE = "the quick brown fox jumps over the lazy dog and runs away. "


class RNNModel(nn.Module):
    def __init__(self, ntoken: int, ninp: int = 16, nhid: int = 32) -> None:
        super().__init__()
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.GRU(ninp, nhid, batch_first=True)
        self.decoder = nn.Linear(nhid, ntoken)

    def forward(
        self, tokens: torch.Tensor, hidden: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        output, hidden = self.rnn(self.encoder(tokens), hidden)
        return self.decoder(output), hidden


def batchify(tokens: torch.Tensor, batch_size: int) -> torch.Tensor:
    length = len(tokens) // batch_size
    return tokens[: length * batch_size].view(batch_size, length)


def main() -> None:
    args = parser.parse_args()
    hvd.init()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    letters = sorted(set(SENTENCE))
    text = SENTENCE * (100 + 40 * hvd.rank())  # every rank has its own length
    tokens = batchify(torch.tensor([letters.index(c) for c in text]), args.batch_size)

    model = RNNModel(len(letters))
    optimizer = optim.Adam(model.parameters(), lr=args.lr)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    for epoch in range(args.epochs):
        hidden, losses = None, []
        for i in range(0, tokens.shape[1] - 1 - args.bptt, args.bptt):
            optimizer.zero_grad()
            inputs, targets = tokens[:, i : i + args.bptt], tokens[:, i + 1 : i + 1 + args.bptt]
            output, hidden = model(inputs, None if hidden is None else hidden.detach())
            loss = functional.cross_entropy(output.flatten(0, 1), targets.flatten())
            loss.backward()
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            with optimizer.skip_synchronize():
                optimizer.step()
            losses.append(loss.item())
        # Ranks that joined early missed the last steps: they take the state of the last one.
        last = hvd.join()
        hvd.broadcast_parameters(model.state_dict(), root_rank=last)
        hvd.broadcast_optimizer_state(optimizer, root_rank=last)
        totals = hvd.allreduce(torch.tensor([sum(losses), len(losses)]), name="loss", op=hvd.Sum)
        if hvd.rank() == 0:
            mean = (totals[0] / totals[1]).item()
            print(f"epoch {epoch + 1} | batches {int(totals[1])} | ppl {math.exp(mean):.2f}")

    if args.save:
        torch.save(model.state_dict(), f"{args.save}/rank-{hvd.rank()}.pt")


if __name__ == "__main__":
    main()
