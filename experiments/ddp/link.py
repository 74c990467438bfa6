"""Two hosts and a slow cable: tunes one job after the other, beside the same job untuned.

A host is a network namespace with one rank; see README.md. Needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import PIPES, ROOT

from cluster.hosts import DEVICE, SUBNET, TwoHosts

RESULTS = Path(__file__).resolve().parent / "results" / "link.json"
JOBS = {
    "14 MB, 1 Gbit/s": ("--layers", "14", "--width", "500", "1000"),
    "60 small tensors, 100 Mbit/s": ("--layers", "60", "--width", "64", "100"),
    "1 MB, 50 Mbit/s": ("--layers", "4", "--width", "250", "50"),
}
"""{name: arguments of the job, rate of the cable in Mbit/s}."""
STEPS = 900
LAST = 50


def train() -> None:
    """Be one rank: train, and have rank 0 print the time of each step in ms."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int)
    parser.add_argument("--width", type=int)
    parser.add_argument("--steps", type=int)
    options = parser.parse_args(sys.argv[2:])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    layers = [nn.Linear(options.width, options.width) for _ in range(options.layers)]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    x = torch.randn(64, options.width)
    times = []
    for _ in range(options.steps):
        begin = time.perf_counter()
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
        times.append(1000 * (time.perf_counter() - begin))
    total = sum(p.double().sum().item() for p in model.parameters())
    if dist.get_rank() == 0:
        print("RESULT", json.dumps({"ms": times, "checksum": total}), flush=True)
    dist.destroy_process_group()


def job(hosts: TwoHosts, arguments: list[str], log: str | None, limit_s: float) -> dict:
    """Run one rank on each host; return what rank 0 tells, and what the tuner has said."""
    processes = []
    for rank in range(2):
        environ = {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_RANK": "0",
            "MASTER_ADDR": f"{SUBNET}.1",
            "MASTER_PORT": "29600",
            "GLOO_SOCKET_IFNAME": DEVICE,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
        }
        words = [sys.executable, __file__, "rank", *arguments]
        if log is not None:
            words = [sys.executable, "-m", "autotune", "run", "--log", log, "--", *words]
        sets = [f"{name}={text}" for name, text in environ.items()]
        inside = hosts.hosts[rank].inside(["env", *sets, *words])
        processes.append(subprocess.Popen(inside, **PIPES, start_new_session=True))
    try:
        outs = [process.communicate(timeout=limit_s) for process in processes]
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    line = next(x for x in outs[0][0].splitlines() if x.startswith("RESULT "))
    said = [x for x in outs[0][1].splitlines() if x.startswith("[ddp]")]
    return json.loads(line.removeprefix("RESULT ")) | {"said": said}


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] == "rank":
        train()
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", nargs="+", default=list(JOBS))
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--limit-s", type=float, default=900)
    options = parser.parse_args()
    found = []
    for name in options.jobs:
        *arguments, rate = JOBS[name]
        arguments += ["--steps", str(options.steps)]
        for run in range(options.runs):
            with TwoHosts(rate_mbit=int(rate)) as hosts, tempfile.TemporaryDirectory() as folder:
                plain = job(hosts, [*arguments[:-1], str(4 * LAST)], None, options.limit_s)
                tuned = job(hosts, arguments, f"{folder}/log.csv", options.limit_s)
            before = statistics.median(plain["ms"][-LAST:])
            after = statistics.median(tuned["ms"][-LAST:])
            end = next((x for x in tuned["said"] if "done:" in x or "unfinished" in x), "")
            certified = "stays in force: bucket" in end and "the default stays" not in end
            found.append({"job": name, "run": run, "plain": plain, "tuned": tuned})
            print(f"{name}, run {run}: {before:.1f} -> {after:.1f} ms", end="; ")
            print(f"faster by {100 * (before / after - 1):.0f} %; certified: {certified}")
            print(f"    {end}", flush=True)
            RESULTS.parent.mkdir(exist_ok=True)
            RESULTS.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
