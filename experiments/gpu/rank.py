"""One rank of one part: ``mpirun -n 2 python rank.py gradients --seconds 30``; rank 0 tells."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import gradients
import host
import steps
import tuned
from ground import Ground
from harness import tell

import horovod.torch as hvd


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part", choices=["gradients", "steps", "host", "tuning"])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--networks", nargs="+", default=[])
    parser.add_argument("--most-steps", type=int, default=100_000)
    parser.add_argument("--commit", default="")
    arguments = parser.parse_args()
    ground = Ground(arguments.device, peer=arguments.part != "tuning")
    about, tiny, seconds = ground.about(arguments.commit), arguments.tiny, arguments.seconds
    if arguments.part == "gradients":
        result = gradients.run(ground, tiny, seconds)
    elif arguments.part == "steps":
        result = steps.run(ground, tiny, seconds, arguments.networks)
    elif arguments.part == "host":
        result = host.run(ground)
    else:
        result = tuned.run(
            ground, tiny, seconds, arguments.most_steps, os.environ["HOROVOD_AUTOTUNE_LOG"]
        )
    if hvd.rank() == 0:
        tell({"about": about, "result": result})
    ground.close()


if __name__ == "__main__":
    main()
