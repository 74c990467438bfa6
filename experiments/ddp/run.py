"""Runs the jobs of ``rank.py`` one after the other and prints the tables; see README.md."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NETWORKS = ("gpt350m", "vgg16", "resnet50")
RESULTS = HERE / "results"
MIB = 2**20


def run(network: str, options: argparse.Namespace) -> dict | None:
    """Return what rank 0 of one job tells."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "autotune", "run", "--log", f"{folder}/log.csv"]
        command += ["--seed", "1", "--", sys.executable, "-m", "torch.distributed.run"]
        command += ["--standalone", "--nproc-per-node", str(options.ranks), str(HERE / "rank.py")]
        command += [network, "--device", options.device, "--rounds", str(options.rounds)]
        command += ["--tiny"] if options.tiny else []
        try:
            done = subprocess.run(
                command, env=environ, text=True, capture_output=True, timeout=options.limit_s
            )
        except subprocess.TimeoutExpired as error:
            said = (error.stderr or b"").decode(errors="replace")[-3000:]  # bytes all the same
            print(f"{network}: no end within {options.limit_s} s\n{said}")
            return None
        finally:
            if options.keep is not None:
                for path in Path(folder).glob("log.*"):
                    shutil.copy(path, options.keep / f"{network}-{path.name}")
    print("\n".join(line for line in done.stderr.splitlines() if line.startswith("[ddp]")))
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line.removeprefix("RESULT "))
    print(f"{network}: failed\n{done.stderr[-3000:]}")
    return None


def report(found: dict) -> None:
    """Print the table of one job."""
    ms = {key: statistics.median(times) for key, times in found["ms"].items()}
    default = ms[json.dumps(dict.fromkeys(found["chosen"], 0) | {"gradient_as_bucket_view": False})]
    chosen = ms[json.dumps(found["chosen"])]
    grid = {key: time for key, time in ms.items() if key != json.dumps(found["chosen"])}
    best = min([*grid.values(), default])
    print(f"### {found['network']}, {found['ranks']} ranks\n")
    print(f"{found['device']}, torch {found['torch']}; tuning: {found['state']} after ", end="")
    print(
        f"{found['tuning_steps']} steps, {found['trials']} trials, {found['tuning_s']:.0f} s; ",
        end="",
    )
    print(f"certified: {found['certified']}\n")
    print("| setting | ms a step, median (min-max) | gain over None, % |\n| --- | --- | --- |")
    for key, times in found["ms"].items():
        params = json.loads(key)
        cap = params["bucket_cap_bytes"]
        name = f"{cap / MIB:g} MiB" if cap else "None"
        if params == found["chosen"]:
            first, view = params["first_bucket_bytes"], params["gradient_as_bucket_view"]
            name += f", first {first / MIB:g} MiB" if first else ""
            name += ", views" if view else ""
            name += " (the tuner's)"
        spread = f"{min(times):.2f}-{max(times):.2f}"
        print(f"| {name} | {ms[key]:.2f} ({spread}) | {100 * (default / ms[key] - 1):+.1f} |")
    gain, most = default / chosen - 1, default / best - 1
    share = f"{gain / most:.2f}" if most > 0.01 else "there is nothing to gain"
    print(f"\ngain of the tuner's over that of the grid's best: {share}")
    print(f"{found['text']}\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--limit-s", type=float, default=220)
    parser.add_argument("--keep", type=Path, help="folder for the logs")
    parser.add_argument("--report", action="store_true", help="print the stored results only")
    options = parser.parse_args()
    for network in options.networks:
        path = RESULTS / f"{options.ranks}-{network}.json"
        found = None if options.report else run(network, options)
        if found is not None and not options.tiny:
            RESULTS.mkdir(exist_ok=True)
            path.write_text(json.dumps(found, indent=1))
        if options.report and path.exists():
            found = json.loads(path.read_text())
        if found is not None:
            report(found)


if __name__ == "__main__":
    main()
