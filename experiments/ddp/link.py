"""Two hosts and a slow cable: tunes one job after the other, beside the same job untuned.

    python experiments/ddp/link.py [--jobs "1 MB, 50 Mbit/s" ...] [--runs 10]
    python experiments/ddp/link.py --report    # prints the stored table

A host is a network namespace with one rank; see README.md. Needs root. Jobs that are not named keep
their stored results.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import PIPES, ROOT, machine, machine_line

from cluster.hosts import DEVICE, SUBNET, TwoHosts

RESULTS = Path(__file__).resolve().parent / "results" / "link.json"
JOBS = {
    "14 MB, 1 Gbit/s": ("--layers", "14", "--width", "500", "--batch", "1200", "1000"),
    "60 small tensors, 100 Mbit/s": ("--layers", "60", "--width", "64", "--batch", "8192", "100"),
    "1 MB, 50 Mbit/s": ("--layers", "4", "--width", "250", "--batch", "64", "50"),
}
"""{name: arguments of the job, rate of the cable in Mbit/s}. A backward pass of the first two takes
about as long as the cable: smaller buckets can be sent while it goes on."""
STEPS = 700
LAST = 50
STEPS_UNTIL = re.compile(r"of the time of (\d+) steps")


def train() -> None:
    """Be one rank: train, and have rank 0 print the time of each step in ms."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int)
    parser.add_argument("--width", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--steps", type=int)
    options = parser.parse_args(sys.argv[2:])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    layers = [nn.Linear(options.width, options.width) for _ in range(options.layers)]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    x = torch.randn(options.batch, options.width)
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


def measure(name: str, steps: int, limit_s: float) -> dict[str, Any]:
    """Train a job untuned and tuned on hosts of its own, and return what came of both."""
    *arguments, rate = JOBS[name]
    arguments += ["--steps"]
    with TwoHosts(rate_mbit=int(rate)) as hosts, tempfile.TemporaryDirectory() as folder:
        plain = job(hosts, [*arguments, str(2 * LAST)], None, limit_s)
        tuned = job(hosts, [*arguments, str(steps)], f"{folder}/log.csv", limit_s)
    end = next((line for line in tuned["said"] if "done:" in line or "unfinished" in line), "")
    until = STEPS_UNTIL.search(end)
    return {
        "commit": machine()["commit"],
        "date": machine()["date"],
        "untuned_ms": [round(one, 2) for one in plain["ms"]],
        "tuned_ms": [round(one, 2) for one in tuned["ms"]],
        "certified": "stays in force: bucket" in end and "the default stays" not in end,
        "steps": int(until[1]) if until else None,
        "said": tuned["said"],
    }


def report(stored: dict[str, Any]) -> None:
    """Print a row per run: medians of the last steps."""
    print(machine_line(stored["machine"]))
    heads = [
        "job",
        "run",
        "untuned, ms",
        f"last {LAST} steps, ms",
        "faster by, %",
        "certified",
        "steps",
    ]
    print(f"\n| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    for name in JOBS:
        for number, run in enumerate(stored["jobs"].get(name, []), 1):
            before, after = (statistics.median(run[k][-LAST:]) for k in ("untuned_ms", "tuned_ms"))
            cells = [name, str(number), f"{before:.1f}", f"{after:.1f}"]
            cells += [f"{100 * (before / after - 1):+.1f}", "yes" if run["certified"] else "no"]
            print(f"| {' | '.join([*cells, str(run['steps'] or 'not done')])} |")


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] == "rank":
        train()
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", nargs="+", default=list(JOBS), choices=list(JOBS))
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--limit-s", type=float, default=900)
    parser.add_argument("--report", action="store_true", help="print the stored table")
    options = parser.parse_args()
    stored: dict[str, Any] = {"jobs": {}}
    if RESULTS.exists():
        stored = json.loads(RESULTS.read_text())
    if not options.report:
        stored["machine"] = machine()
        for name in options.jobs:
            runs = stored["jobs"][name] = []
            for _ in range(options.runs):
                runs.append(measure(name, options.steps, options.limit_s))
                print(name, runs[-1]["said"][-1], flush=True)
                RESULTS.write_text(json.dumps(stored) + "\n")
    report(stored)


if __name__ == "__main__":
    main()
