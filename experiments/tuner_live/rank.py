"""One rank of a live run: ours or Horovod's policy tunes the job, then the result is compared.

    mpirun -n 4 python rank.py ours slow-cable --references '[{...}]'

After tuning, windows of default, final choice and references take turns in the same job.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tuner_bench"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
from harness import tell
from live_job import WORKLOADS, LiveJob, compare, make_workload
from mpi4py import MPI

import horovod.torch as hvd
from autotune.trial import CommParams

DEFAULT_STEPS = 30
"""Steps under the default before a policy begins; ours takes them for its warm-up."""
LOOK_EVERY = 20
"""Steps between two looks at whether the tuner is done."""


def tune_ours(job: LiveJob, most_steps: int) -> dict[str, Any]:
    """Train until the tuner is done; what it found is in its log. **Collective.**"""
    done = False
    while not done and job.steps < most_steps:
        job.make(LOOK_EVERY)
        status = hvd.autotune.status()
        done = MPI.COMM_WORLD.bcast(status.state not in ("starting", "tuning"))
    job.make(2)
    job.params = CommParams(**hvd.autotune.params())
    return {"finished": done, "text": hvd.autotune.status().text}


def tune_horovod(job: LiveJob, seed: int) -> dict[str, Any]:
    """Run Horovod's policy on rank 0. **Collective.**"""
    from policies import horovod

    if hvd.rank() != 0:
        job.follow()
        return {}
    surface = SimpleNamespace(gpu=False, hosts=hvd.cross_size())
    job.surface = surface  # type: ignore[attr-defined]
    ending = horovod.run(job, np.random.default_rng(seed))  # type: ignore[arg-type]
    job.run(2)
    job.release()
    return {"finished": True, "trials": ending.trials, "best_score": ending.best_score}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("policy", choices=["ours", "horovod", "none"])
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--references", type=json.loads, default=[], help="JSON list of settings")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--window", type=int, default=10, help="steps of a window")
    parser.add_argument("--most-steps", type=int, default=6000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    hvd.init()
    job = LiveJob(make_workload(arguments.workload))
    result: dict[str, Any] = {"finished": True}
    before = job.make(DEFAULT_STEPS)[DEFAULT_STEPS // 3 :]
    job.step_us.clear()
    if arguments.policy == "ours":
        result = tune_ours(job, arguments.most_steps)
    elif arguments.policy == "horovod":
        result = tune_horovod(job, arguments.seed)
    steps, tuning_us = job.steps, list(job.step_us)
    final = CommParams.from_dict(MPI.COMM_WORLD.bcast(job.params.as_dict()))
    settings = {"default": CommParams(), "final": final}
    settings |= {
        f"reference {k}": CommParams.from_dict(values)
        for k, values in enumerate(arguments.references)
    }
    windows = compare(job, settings, rounds=arguments.rounds, steps=arguments.window)
    if hvd.rank() == 0:
        result |= {
            "ranks": hvd.size(),
            "hosts": hvd.cross_size(),
            "payload_bytes": job.payload_bytes,
            "steps": steps,
            "before_ms": float(np.median(before)) / 1000,
            "step_us": [round(value) for value in tuning_us],
            "final": final.as_dict(),
            "windows": windows,
        }
        tell(result)
    hvd.shutdown()


if __name__ == "__main__":
    main()
