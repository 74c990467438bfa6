"""What does planning cost ranks that fill the cores? See README.md.

python experiments/planning_cost/run.py             # about 5 minutes, on a machine of its own
python experiments/planning_cost/run.py --report    # prints the stored tables
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from harness import machine, machine_line, run_ranks, spread

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.json"
RANKS = 2
WHOLE = ("setsid", "nice 19", "nice 16")
"""Variants in which whole jobs are tuned; "nice 16" is what the package ships."""


def first_act(name: str, epochs: int) -> dict[str, Any]:
    """Tune one job of ``digits/train.py`` and return what its tuner noted."""
    with tempfile.TemporaryDirectory() as folder:
        words = [HERE / "first_act.py", name, folder, str(epochs)]
        log = str(Path(folder) / "log.csv")
        switches = {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_LOG": log}
        noted: dict[str, Any] = run_ranks(RANKS, words, limit_s=300, **switches)
        return noted


def report(results: dict[str, Any]) -> None:
    """Print both tables."""
    print(machine_line(results["machine"]))
    print("\nvariant   steps with a plan under way over without   steps to a plan   CPU ms   s")
    for name, plans in results["paired"].items():
        quiet_ms = sum(plan["steps"] * plan["quiet_ms"] for plan in plans)
        during_ms = sum(plan["steps"] * plan["during_ms"] for plan in plans)
        each = spread([plan["during_ms"] / plan["quiet_ms"] for plan in plans], 3)
        steps = spread([plan["steps"] for plan in plans], 0)
        cpu = spread([plan["cpu_ms"] for plan in plans], 0)
        wall = spread([plan["steps"] * plan["during_ms"] / 1000 for plan in plans], 2)
        print(f"{name:8}  {during_ms / quiet_ms:.3f}  {each}  {steps}  {cpu}  {wall}")
    quiet = [plan["quiet_ms"] for plans in results["paired"].values() for plan in plans]
    print(f"a quiet step: {spread(quiet)} ms")
    if not any(results["first_act"].values()):
        return
    print("\nvariant   steps to DONE   plans   steps to a plan   CPU ms   imports s (CPU)")
    print("          first reading of the default over later ones   the rest, CPU us a step")
    for name, jobs in results["first_act"].items():
        plans = [plan for job in jobs for plan in job["plans"]]
        done = [job["steps_to_done"] or "none" for job in jobs]
        imports = [job["imports"] for job in jobs]
        print(
            f"{name:8}  {done}  {spread([len(job['plans']) for job in jobs], 0)}"
            f"  {spread([plan['steps'] for plan in plans], 0)}"
            f"  {spread([plan['cpu_ms'] for plan in plans], 0)}"
            f"  {spread([one['wall_ms'] / 1000 for one in imports])}"
            f" ({spread([one['cpu_ms'] / 1000 for one in imports])})"
        )
        print(f"          {first_readings(jobs)}   {spread([rest_us(job) for job in jobs], 0)}")


def first_readings(jobs: list[dict[str, Any]]) -> list[str]:
    """Return, per job, the default's first step time over the median of its later ones."""
    found = []
    for job in jobs:
        first, *later = job["default_us"] or [0.0]
        found.append(f"{first / statistics.median(later):.2f}" if later else "none")
    return found


def rest_us(job: dict[str, Any]) -> float:
    """Return the CPU time of everything but imports, plans and the start, in us a step."""
    plans = sum(plan["cpu_ms"] for plan in job["plans"])
    rest_ms = job["cpu_ms"] - job["ready_ms"] - job["imports"]["cpu_ms"] - plans
    return float(1000 * rest_ms / job["steps"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plans", type=int, default=12, help="of each variant")
    parser.add_argument("--quiet", type=int, default=40, help="steps between two plans")
    parser.add_argument("--jobs", type=int, default=3, help="whole jobs of each variant")
    parser.add_argument("--epochs", type=int, default=30, help="of 46 steps, of a whole job")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--report", action="store_true", help="print the stored tables")
    options = parser.parse_args()
    if options.report:
        report(json.loads(options.output.read_text()))
        return
    about = machine()
    words = [HERE / "rank.py", str(options.plans), str(options.quiet)]
    paired = run_ranks(RANKS, words, limit_s=600)
    jobs: dict[str, list[Any]] = {name: [] for name in WHOLE}
    for _ in range(options.jobs):
        for name in WHOLE:
            jobs[name].append(first_act(name, options.epochs))
    results = {"machine": about, "paired": paired, "first_act": jobs}
    options.output.write_text(json.dumps(results, indent=1))
    report(results)


if __name__ == "__main__":
    main()
