"""Full tuning runs of ours and of Horovod's policy on our engine, in turns, in real jobs.

    python experiments/tuner_live/run.py                 # about 20 minutes; root and iproute2
    python experiments/tuner_live/run.py --ours 1 --horovod 0 --parts two-hosts
    python experiments/tuner_live/run.py --report        # prints the stored tables

Parts: two-hosts (2 x 2 ranks, a cable of 300 Mbit/s, 0.25 MB a step), resnet50-gradients and
many-small (2 ranks of one host: the workloads that the real Horovod was measured with). Writes
results.json.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from harness import BIN, FLAGS, PIPES, collect, job_environment, machine, machine_line, run_ranks
from live_report import figures, report

from autotune.storage.reader import read_log
from autotune.trial import CommParams
from cluster.hosts import TwoHosts

HERE = Path(__file__).resolve().parent
RATE_MBIT = 300
KIB = 1024
PARTS: dict[str, dict[str, Any]] = {
    "two-hosts": {"workload": "slow-cable", "ranks": (2, 2), "ours": 10, "horovod": 5},
    "resnet50-gradients": {
        "workload": "resnet50-gradients",
        "ranks": (2, 0),
        "ours": 2,
        "horovod": 1,
    },
    "many-small": {"workload": "many-small", "ranks": (2, 0), "ours": 2, "horovod": 1},
}
LIMIT_S = 900
REFERENCES = 3


def candidates(hosts: int) -> list[CommParams]:
    """Return the settings among which the references are found."""
    return [
        CommParams(fusion_threshold_bytes=size * KIB, cycle_time_ms=cycle, hierarchical_allreduce=h)
        for h in ((True, False) if hosts > 1 else (False,))
        for size in (64, 256, 4096, 65536)
        for cycle in (0.2, 1.0, 5.0)
    ]


def start(part: dict[str, Any], hosts: TwoHosts | None, words: list[Any], **environ: str) -> Any:
    """Run one job and return what its rank 0 tells."""
    if hosts is not None:
        command = [sys.executable, HERE / "rank.py", *words]
        return collect(hosts.start(part["ranks"], command, **environ), LIMIT_S)
    if not environ:
        return run_ranks(sum(part["ranks"]), [HERE / "rank.py", *words], LIMIT_S)
    command = [BIN / "mpirun", "-n", sum(part["ranks"]), *FLAGS, sys.executable, HERE / "rank.py"]
    process = subprocess.Popen(
        [str(word) for word in [*command, *words]], **PIPES, env={**job_environment(), **environ}
    )
    return collect(process, LIMIT_S)


def find_references(part: dict[str, Any], hosts: TwoHosts | None) -> list[dict[str, Any]]:
    """Return the fastest few of ``candidates``, measured in one job."""
    settings = [params.as_dict() for params in candidates(1 if hosts is None else 2)]
    words = ["none", part["workload"], "--references", json.dumps(settings), "--rounds", "4"]
    windows = start(part, hosts, words)["windows"]
    names = [name for name in windows if name.startswith("reference")]
    names.sort(key=lambda name: statistics.median(windows[name]))
    return [settings[int(name.split()[1])] for name in names[:REFERENCES]]


def run_ours(part: dict[str, Any], hosts: TwoHosts | None, references: str) -> dict[str, Any]:
    """One job with the tuner on; its log tells trials, certificate and gain."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.csv"
        words = ["ours", part["workload"], "--references", references]
        environ = {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_LOG": str(log)}
        result = start(part, hosts, words, **environ)
        certificate = read_log(str(log)).certificate
        with sqlite3.connect(log.with_suffix(".db")) as database:
            trials = database.execute("select count(*) from trials").fetchone()[0]
            count = "select count(*) from samples where kind = 'certify'"
            windows = database.execute(count).fetchone()[0]
    result |= {
        "trials": trials,
        "certificate_windows": windows,
        "claimed": certificate.gain if certificate and certificate.certified else 0.0,
        "reason": certificate.reason if certificate else "",
    }
    return dict(result)


def run_horovod(
    part: dict[str, Any], hosts: TwoHosts | None, references: str, seed: int
) -> dict[str, Any]:
    """One job under Horovod's policy."""
    words = ["horovod", part["workload"], "--references", references, "--seed", seed]
    result: dict[str, Any] = start(part, hosts, words)
    default_us = 1000 * statistics.median(result["windows"]["default"])
    best = result.pop("best_score")
    claimed = best * default_us / result["payload_bytes"] - 1
    return {**result, "certificate_windows": 0, "claimed": claimed}


def turns(ours: int, horovod: int) -> list[tuple[str, int]]:
    """Return (policy, number) so that the two alternate evenly."""
    entries = [("ours", k, (k + 0.5) / max(ours, 1)) for k in range(ours)]
    entries += [("horovod", k, (k + 0.5) / max(horovod, 1)) for k in range(horovod)]
    return [(policy, k) for policy, k, _ in sorted(entries, key=lambda entry: entry[2])]


def run_part(name: str, part: dict[str, Any], hosts: TwoHosts | None) -> Iterator[dict[str, Any]]:
    """All runs of one part; yields what there is after each."""
    begin = time.monotonic()
    found = find_references(part, hosts)
    references, runs = json.dumps(found), []
    for policy, number in turns(part["ours"], part["horovod"]):
        if policy == "ours":
            result = run_ours(part, hosts, references)
        else:
            result = run_horovod(part, hosts, references, number)
        runs.append({"policy": policy, **figures(result)})
        seconds = time.monotonic() - begin
        print(f"{name} {policy} {number}: {seconds:.0f} s", file=sys.stderr, flush=True)
        yield {"references": found, "runs": runs, "seconds": round(seconds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--ours", type=int, help="runs of ours in each part")
    parser.add_argument("--horovod", type=int, help="runs of Horovod's policy in each part")
    parser.add_argument("--output", type=Path, default=HERE / "results.json")
    parser.add_argument("--report", action="store_true", help="print the stored results only")
    arguments = parser.parse_args()
    if not arguments.report:
        content: dict[str, Any] = {"machine": machine(), "rate_mbit": RATE_MBIT, "parts": {}}
        for name in arguments.parts:
            part = dict(PARTS[name])
            for policy in ("ours", "horovod"):
                wanted = getattr(arguments, policy)
                part[policy] = part[policy] if wanted is None else wanted
            with TwoHosts(rate_mbit=RATE_MBIT) if part["ranks"][1] else nullcontext() as hosts:
                for result in run_part(name, part, hosts):
                    content["parts"][name] = result
                    arguments.output.write_text(json.dumps(content, indent=1) + "\n")
    stored = json.loads(arguments.output.read_text())
    print(machine_line(stored["machine"]) + "\n\n" + report(stored))


if __name__ == "__main__":
    main()
