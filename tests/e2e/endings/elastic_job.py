"""A job in an elastic function: python elastic_job.py FOLDER [--kill RANK BATCH] [--pause SECONDS]

Every rank leaves FOLDER/pid-R, FOLDER/begun-R (the batch at which it began), FOLDER/at-R (the last
one that was committed) and FOLDER/end-R (its exit code, as far as the script knows); rank 0 also
FOLDER/weights.pt. With ``--kill`` a rank dies in the middle of a backward pass.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

import horovod.torch as hvd
from parallel.training import batches, loss_of, model, shard, wrap

BATCHES = 30


def write(path: Path, text: object) -> None:
    path.with_suffix(".part").write_text(str(text))
    path.with_suffix(".part").rename(path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kill", type=int, nargs=2, default=(-1, -1))
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--fail", type=int, default=-1, help="rank that raises an error")
    given = parser.parse_args()
    hvd.init()
    torch.set_num_threads(1)
    rank, folder = hvd.rank(), given.folder
    net = model()
    optimizer = wrap(net)
    state = hvd.elastic.TorchState(net, optimizer, batch=0)
    data = list(batches(BATCHES))

    def die(gradient: torch.Tensor) -> None:
        if (rank, state.batch) == tuple(given.kill):
            os.kill(os.getpid(), signal.SIGKILL)

    net[6].weight.register_hook(die)

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> None:
        write(folder / f"begun-{rank}", state.batch)
        write(folder / f"pid-{rank}", os.getpid())
        while state.batch < BATCHES:
            x, y = data[state.batch]
            optimizer.zero_grad()
            loss_of(net, shard(x), shard(y)).backward()
            optimizer.step()
            state.batch += 1
            if given.fail == rank and state.batch == 7:
                raise ValueError("the script's own")
            time.sleep(given.pause)
            if state.batch % 2 == 0:
                state.commit()
                write(folder / f"at-{rank}", state.batch)

    try:
        train(state)
    except SystemExit as end:
        write(folder / f"end-{rank}", end.code)
        raise
    write(folder / f"end-{rank}", 0)
    if rank == 0:
        torch.save([parameter.detach() for parameter in net.parameters()], folder / "weights.pt")


if __name__ == "__main__":
    main()
