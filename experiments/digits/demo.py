"""The whole path on one machine: tune a training job, print the result, compare with the default.

python experiments/digits/demo.py --output demo-output
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from compare import compare, read_medians

BIN = Path(sys.executable).parent
TRAIN = Path(__file__).with_name("train.py")


def run(words: list[str | Path], limit_s: float, **environ: str) -> None:
    """Run a command where everyone can see it; the demo ends with its exit code when it fails."""
    shown = [f"{name}={text}" for name, text in environ.items()]
    plain = [_short(word) for word in words]
    print(f"\n$ {' '.join([*shown, shlex.join(plain)])}", flush=True)
    code = subprocess.run(
        [str(word) for word in words],
        env={**job_environment(), **environ},
        timeout=limit_s,
        check=False,
    ).returncode
    if code:
        sys.exit(f"demo: the command above ended with exit code {code}")


def job_environment() -> dict[str, str]:
    """Return this environment without settings of an earlier job, one thread per rank."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("HOROVOD_")}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def train_command(ranks: int, *arguments: str | Path) -> list[str | Path]:
    """Return the command that trains on ``ranks`` ranks."""
    return [BIN / "horovodrun", "-np", str(ranks), sys.executable, TRAIN, *arguments]


def tune(output: Path, options: argparse.Namespace) -> Path:
    """Train with tuning on and return the log; a job too short for the tuner goes on once.

    On a busy machine the tuner pauses to keep its budget, so one job may not be long enough.
    """
    log = output / "autotune.csv"
    arguments: list[str | Path] = ["--epochs", str(options.epochs), "--output", output]
    switches = {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_LOG": str(log)}
    begin = time.monotonic()
    run(train_command(options.ranks, *arguments), 150, **switches)
    if not finished(log) and time.monotonic() - begin < 0.3 * options.seconds:
        print("\nthe job ended before its tuner did: the same command goes on from the log")
        run(train_command(options.ranks, *arguments), 150, **switches)
    return log


def finished(log: Path) -> bool:
    """Return whether the tuning that ``log`` records was finalised."""
    best = subprocess.run(
        [BIN / "autotune", "best", log, "--format", "json"], capture_output=True, check=False
    )
    return best.returncode == 0 and bool(json.loads(best.stdout)["finished"])


def measure(output: Path, log: Path, options: argparse.Namespace, deadline: float) -> None:
    """Time default and tuned runs in turn, equal seeds in each pair, and print the verdict."""
    files: dict[str, list[Path]] = {"default": [], "tuned": []}
    begin = time.monotonic()
    for pair in range(options.pairs):
        each = (time.monotonic() - begin) / max(pair, 1)
        if time.monotonic() + each > deadline:
            print(f"\ntime is up: {pair} pairs instead of {options.pairs}")
            break
        for name in ("default", "tuned") if pair % 2 == 0 else ("tuned", "default"):
            stats = output / f"{name}-{pair}.json"
            command = train_command(options.ranks, "--epochs", "5", "--stats", stats)
            command += ["--seed", str(100 + pair)]
            if name == "tuned":
                command = [BIN / "autotune", "replay", log, "--", *command]
            run(command, 90)
            files[name].append(stats)
    runs = {name: [read_medians(path) for path in paths] for name, paths in files.items()}
    if runs["tuned"]:
        print(f"\n{options.ranks} ranks, {machine()}, {len(files['tuned'])} pairs, medians")
        result = compare(runs["default"], runs["tuned"], np.random.default_rng(0))
        print("\n".join(result.lines()), flush=True)


def machine() -> str:
    """Return what the numbers were taken on."""
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores ({platform.machine()}), load {os.getloadavg()[0]:.1f}"


def _short(word: str | Path) -> str:
    if isinstance(word, Path) and word.is_absolute():
        return word.name if word.parent == BIN else os.path.relpath(word)
    return "python" if word == sys.executable else str(word)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("demo-output"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=30, help="epochs of the tuned job")
    parser.add_argument("--pairs", type=int, default=4, help="pairs of timed runs")
    parser.add_argument("--seconds", type=float, default=220, help="time for everything")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    shutil.rmtree(options.output, ignore_errors=True)
    options.output.mkdir(parents=True)
    log = tune(options.output, options)
    run([BIN / "autotune", "show", log], 30)
    run([BIN / "autotune", "best", log], 30)
    measure(options.output, log, options, deadline)
    print(f"\nlogs, checkpoint and step times: {options.output}/")


if __name__ == "__main__":
    main()
