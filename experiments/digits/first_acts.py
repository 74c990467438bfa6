"""Act 1's job several times: would what its lines claim hold? See README.md.

    python experiments/digits/first_acts.py --runs 10     # a minute each, on a machine of its own
    python experiments/digits/first_acts.py --report      # prints the stored table

Every figure of every progress line is compared with what the job's own paired comparison finds at
its end; writes results/first_acts.json.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from act import BIN, TRAIN, job_environment, start_here
from harness import machine, machine_line

from autotune.result import read_result
from autotune.storage.reader import read_log

RESULTS = Path(__file__).resolve().parent / "results/first_acts.json"
DENIED = 5
STEPS = re.compile(r"of the time of (\d+) steps")
TRIAL = re.compile(r"autotune: trial (\d+) ")
CLAIM = re.compile(r"([+-][\d.]+) % \(90 %: ([+-][\d.]+) to ([+-][\d.]+)\)")


def play(epochs: int, seed: int) -> dict[str, Any]:
    """Tune one job and return what it said on the way and in the end, gains in per cent."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.csv"
        words = [BIN / "horovodrun", "-np", "2", sys.executable, TRAIN, "--epochs", str(epochs)]
        words += ["--output", folder, "--seed", str(seed)]
        environ = {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_LOG": str(log)}
        process = start_here(words, job_environment() | environ, subprocess.PIPE)
        try:
            lines = "".join(text or "" for text in process.communicate(timeout=600)).splitlines()
        finally:
            process.kill()
        said = [line.split("] ", 1)[-1] for line in lines if "autotune: " in line]
        result, view = read_result(str(log)), read_log(str(log))
        abandoned = [trial.trial_id for trial in view.trials if str(trial.state) == "abandoned"]
        return {
            "lines": said,
            "finished": result.finished,
            "certified": result.certified,
            "compared": result.gain if result.finished else None,
            "abandoned": abandoned,
        }


def claims(run: dict[str, Any]) -> list[tuple[float, float, float]]:
    """Return (gain, low, high), per cent, of every claim of a better setting before the end."""
    found = []
    for line in run["lines"]:
        if TRIAL.search(line):
            found += [tuple(float(one) for one in match) for match in CLAIM.findall(line)]
    return [claim for claim in found if claim[0] > 0]


def report(results: dict[str, Any]) -> None:
    """Print a row per run, and how many claims its comparison denies."""
    print(machine_line(results["machine"]))
    heads = ["run", "steps until done", "comparison, %", "largest claim on the way, %"]
    heads += ["points above the comparison's interval", "abandoned"]
    print(f"\n| {' | '.join(heads)} |\n{'| --- ' * len(heads)}|")
    beyond: list[float] = []
    for number, run in enumerate(results["runs"], 1):
        made = claims(run)
        largest = max((claim[0] for claim in made), default=0.0)
        steps = STEPS.search(run["lines"][-1])
        compared, excess = "not made", ""
        if run["compared"] is not None:
            gain, low, high = (100 * one for one in run["compared"])
            compared = f"{gain:+.1f} ({low:+.1f} to {high:+.1f})"
            excess = f"{max(largest - high, 0.0):.1f}"
            beyond += [claim[0] - high for claim in made]
        print(
            f"| {number} | {steps[1] if steps else 'not done'} | {compared} | {largest:+.1f} "
            f"| {excess} | {len(run['abandoned'])} |"
        )
    denied = sum(one > DENIED for one in beyond)
    print(f"\n{len(beyond)} claims of a gain, {denied} over {DENIED} points above the interval")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--report", action="store_true", help="print the stored table")
    options = parser.parse_args()
    if not options.report:
        about = machine()
        runs = [play(options.epochs, seed) for seed in range(options.runs)]
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps({"machine": about, "runs": runs}, indent=1) + "\n")
    report(json.loads(RESULTS.read_text()))


if __name__ == "__main__":
    main()
