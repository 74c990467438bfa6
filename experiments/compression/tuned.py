"""Two hosts and a cable of 1 Gbit/s: what does the tuner gain where it may try bfloat16?

python experiments/compression/tuned.py [--runs 2] [--ways "runtime, TCP" ...] [--report]

A job with this package's runtime, by MPI and without it, and with plain DistributedDataParallel,
each tuned with and without HOROVOD_AUTOTUNE_EXPLORE=bf16, in turns. Needs root and iproute2. Writes
tuned.json, in which ways that are not named keep their results, and prints the README's table.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from harness import PIPES, ROOT, collect, machine, machine_line, tell

from autotune.result import gain_text, read_result, setting_text
from cluster.hosts import DEVICE, SUBNET, TwoHosts

RESULTS = Path(__file__).resolve().parent / "tuned.json"
RATE_MBIT = 1000
MOST_STEPS, LAST = 1500, 50
WAYS = ("runtime, MPI", "runtime, TCP", "DistributedDataParallel")
WORDS = ("", "bf16")


def train(way: str) -> None:
    """Be one rank: train until the tuner is done; rank 0 tells the steps' times in ms."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(*(nn.Linear(500, 500) for _ in range(14)))
    if way.startswith("runtime"):
        import horovod.torch as hvd

        hvd.init()
        rank, status = hvd.rank(), hvd.autotune.status
        hvd.broadcast_parameters(model.state_dict(), 0)
        sgd = torch.optim.SGD(model.parameters(), lr=1e-4)
        names = list(model.named_parameters())
        optimizer = hvd.DistributedOptimizer(sgd, named_parameters=names)
        share = hvd.broadcast_object
    else:
        import torch.distributed as dist

        from autotune import ddp

        dist.init_process_group("gloo")
        rank, status = dist.get_rank(), ddp.status
        model = nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

        def share(value: bool, root: int) -> bool:
            values = [value]
            dist.broadcast_object_list(values, root)
            return bool(values[0])

    x, times, left = torch.randn(300, 500), [], MOST_STEPS
    while left:
        begin = time.perf_counter()
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
        times.append(1000 * (time.perf_counter() - begin))
        left -= 1
        if left > LAST and left % LAST == 0 and share(status().state == "done", 0):
            left = LAST
    if rank == 0:
        tell({"ms": times})
    if way.startswith("runtime"):
        hvd.shutdown()


def ranks_of(way: str, hosts: TwoHosts, environ: dict[str, str]) -> dict[str, Any]:
    """Return what rank 0 of a job with a rank on each host tells."""
    words = [sys.executable, __file__, "rank", way]
    os.environ["TRANSPORT"] = "tcp" if way == "runtime, TCP" else "mpi"
    if way.startswith("runtime"):
        return dict(collect(hosts.start((1, 1), words, **environ), 900))
    common = {
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": f"{SUBNET}.1",
        "MASTER_PORT": "29600",
        "GLOO_SOCKET_IFNAME": DEVICE,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    processes = []
    for rank, host in enumerate(hosts.hosts):
        sets = [f"{k}={v}" for k, v in {**common, **environ, "RANK": str(rank)}.items()]
        run = [sys.executable, "-m", "autotune", "run", "--", *words]
        processes.append(subprocess.Popen(host.inside(["env", *sets, *run]), **PIPES))
    found = dict(collect(processes[0], 900))
    processes[1].communicate(timeout=60)
    return found


def measure(way: str, word: str) -> dict[str, Any]:
    """Tune one job; return what came of it."""
    with TwoHosts(rate_mbit=RATE_MBIT) as hosts, tempfile.TemporaryDirectory() as folder:
        log = f"{folder}/log.csv"
        environ = {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_LOG": log}
        if word:
            environ["HOROVOD_AUTOTUNE_EXPLORE"] = word
        times = ranks_of(way, hosts, environ)["ms"]
        result = read_result(log)
    default = type(result.params)()
    return {
        "way": way,
        "word": word,
        "commit": machine()["commit"],
        "ms": [round(one, 1) for one in times],
        "gain": gain_text(result),
        "setting": setting_text(result.params, beside=default) or "the default",
        "is_done": result.finished,
    }


def report(stored: dict[str, Any]) -> None:
    """Print a row for each job."""
    print(machine_line(stored["machine"]))
    heads = ["job", "explored by word", "first 20 steps, ms", f"last {LAST} steps, ms"]
    heads += ["certificate, a gain in time", "setting that stays", "steps"]
    print(f"\n| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    for one in sorted(stored["jobs"], key=lambda each: (WAYS.index(each["way"]), each["word"])):
        first, last = one["ms"][5:20], one["ms"][-LAST:]
        cells = [one["way"], one["word"] or "nothing"]
        cells += [f"{statistics.median(first):.1f}", f"{statistics.median(last):.1f}"]
        cells += [one["gain"] if one["is_done"] else "not done", one["setting"]]
        print(f"| {' | '.join([*cells, str(len(one['ms']))])} |")


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] == "rank":
        train(sys.argv[2])
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--report", action="store_true", help="print the stored table")
    options = parser.parse_args()
    if not options.report:
        jobs: list[dict[str, Any]] = []
        if RESULTS.exists():
            jobs = json.loads(RESULTS.read_text())["jobs"]
            jobs = [one for one in jobs if one["way"] not in options.ways]
        for _ in range(options.runs):
            for way in options.ways:
                for word in WORDS:
                    jobs.append(measure(way, word))
                    print(way, word, jobs[-1]["gain"], jobs[-1]["setting"], flush=True)
        RESULTS.write_text(json.dumps({"machine": machine(), "jobs": jobs}) + "\n")
    report(json.loads(RESULTS.read_text()))


if __name__ == "__main__":
    main()
