"""One rank: ``mpirun -n 2 python rank.py CASE --seconds 20``; rank 0 tells the samples.

All values of the parameter are visited in random orders; then the best and the worst of them take
turns: fresh samples.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from cases import CASES
from harness import tell
from mpi4py import MPI
from settings import Setting
from two_hosts.rank import rounds
from workloads import make_steps

import horovod.torch as hvd


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("case", choices=list(CASES))
    parser.add_argument("--seconds", type=float, default=20)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    hvd.init()
    case, steps = CASES[arguments.case], make_steps(arguments.case)
    settings = [Setting(**{case.parameter: value}) for value in case.values]
    begin = time.monotonic()
    searched = rounds(steps, settings, begin + 0.5 * arguments.seconds, at_least=2)
    ordered = sorted(searched, key=lambda setting: statistics.median(searched[setting]))
    pair = MPI.COMM_WORLD.bcast([ordered[0], ordered[-1]])
    fresh = rounds(steps, pair, begin + arguments.seconds, at_least=5)
    if hvd.rank() == 0:
        told = {
            part: [[getattr(s, case.parameter), values] for s, values in samples.items()]
            for part, samples in (("searched", searched), ("in_turns", fresh))
        }
        tell({"ranks": hvd.size(), **told})
    hvd.shutdown()


if __name__ == "__main__":
    main()
