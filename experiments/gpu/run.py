"""Ours on GPUs against NCCL itself and DistributedDataParallel; the tuner on them.

    python experiments/gpu/run.py --ranks 2 --commit 1a2b3c4       # 8 minutes
    python experiments/gpu/run.py --parts gradients host
    python experiments/gpu/run.py --parts slow_tuning              # 10 minutes: all through sockets
    python experiments/gpu/run.py --device cpu --tiny --seconds 4  # a dry run, without GPUs
    python experiments/gpu/run.py --report                         # prints the stored tables

Writes results/RANKS-PART.json, one file per part, as soon as the part has ended.
"""

from __future__ import annotations

import argparse
import functools
import json
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from harness import BIN, FLAGS, PIPES, ROOT, collect, job_environment
from report import report

HERE = Path(__file__).resolve().parent
PARTS = ("gradients", "steps", "host", "tuning", "slow_tuning")
NETWORKS = ("resnet50", "vgg16", "gpt350m")
SECONDS = {
    "gradients": 30.0,
    **{"resnet50": 40.0, "vgg16": 30.0, "gpt350m": 50.0},
    "host": 0.0,
    **{"tuning": 95.0, "slow_tuning": 300.0},
}
"""Of each list of gradients, each network's steps, and the two tuning runs."""
LINKS: dict[str, tuple[str, dict[str, str]]] = {
    "tuning": ("fast", {}),
    "slow_tuning": ("slow", {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}),
}


def start(
    options: argparse.Namespace, part: str, seconds: float, *words: str, **environ: str
) -> dict[str, Any]:
    """Run one job and return what its rank 0 tells."""
    own = BIN / "mpirun"
    mpirun = own if own.exists() else shutil.which("mpirun") or "mpirun"
    command = [mpirun, "-n", options.ranks, *FLAGS, sys.executable, HERE / "rank.py", part]
    command += ["--device", options.device, "--commit", options.commit]
    seconds = options.seconds or seconds
    command += ["--seconds", seconds, *["--tiny"] * options.tiny, *words]
    process = subprocess.Popen(
        [str(word) for word in command], **PIPES, env={**job_environment(), **environ}
    )
    return dict(collect(process, options.limit or 120 + 2 * seconds))


def run_tuning(options: argparse.Namespace, part: str) -> dict[str, Any]:
    """One job with the tuner on; its log tells trials, certificate and gain."""
    from autotune.storage.reader import read_log

    _, variables = LINKS[part]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.csv"
        environ = {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_LOG": str(log), **variables}
        if options.trials:
            environ |= {"HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": str(options.trials)}
        words = ["--most-steps", str(options.most_steps)]
        told = start(options, "tuning", SECONDS[part], *words, **environ)
        view = read_log(str(log))
        with sqlite3.connect(log.with_suffix(".db")) as database:
            trials = database.execute("select count(*) from trials").fetchone()[0]
            count = "select count(*) from samples where kind = 'certify'"
            windows = database.execute(count).fetchone()[0]
        lines = log.read_text().splitlines()
    certificate = view.certificate
    told["result"] |= {
        "trials": trials,
        "certificate_windows": windows,
        "certified": bool(certificate and certificate.certified),
        "gain": certificate.gain if certificate else None,
        "gain_low": certificate.gain_low if certificate else None,
        "reason": certificate.reason if certificate else "",
        "best": view.best.params.as_dict() if view.best else None,
        "log": lines,
    }
    return told


def run_part(options: argparse.Namespace, part: str) -> dict[str, Any]:
    """Run the jobs of one part; one that fails is told of and left out."""
    jobs: dict[str, Callable[[], dict[str, Any]]]
    if part in LINKS:
        jobs = {LINKS[part][0]: functools.partial(run_tuning, options, part)}
    elif part == "steps":
        jobs = {
            name: functools.partial(start, options, part, SECONDS[name], "--networks", name)
            for name in options.networks
        }
    else:
        jobs = {part: functools.partial(start, options, part, SECONDS[part])}
    about, results = {}, {}
    for name, job in jobs.items():
        try:
            told = job()
        except SystemExit as error:
            print(f"{part} {name}: {error}", file=sys.stderr, flush=True)
            continue
        about = told["about"]
        results |= {name: told["result"]} if part in LINKS else told["result"]
    return {"about": about, "result": results}


def commit() -> str:
    """Return the commit of the tree, or nothing where there is no git."""
    try:
        words = ["git", "rev-parse", "--short", "HEAD"]
        return subprocess.run(words, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS[:-1])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small networks, for dry runs")
    parser.add_argument("--seconds", type=float, help="instead of each part's own")
    parser.add_argument("--most-steps", type=int, default=100_000, help="of a tuning run")
    parser.add_argument("--trials", type=int, help="at most so many in a tuning run")
    parser.add_argument("--limit", type=float, help="seconds that a job may take")
    parser.add_argument("--commit", default=commit())
    parser.add_argument("--output", type=Path, default=HERE / "results")
    parser.add_argument("--report", action="store_true", help="print the stored tables only")
    options = parser.parse_args()
    if not options.report:
        options.output.mkdir(parents=True, exist_ok=True)
        for part in options.parts:
            begin = time.monotonic()
            told = run_part(options, part)
            if not told["result"]:
                continue
            told["seconds"] = round(time.monotonic() - begin)
            path = options.output / f"{options.ranks}-{part}.json"
            path.write_text(json.dumps(told, indent=1) + "\n")
            print(f"{path}: {told['seconds']} s", file=sys.stderr, flush=True)
    print(report(options.output))


if __name__ == "__main__":
    main()
