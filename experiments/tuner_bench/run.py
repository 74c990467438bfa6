"""Run the bench: all policies on all surfaces, with an oracle.

    python experiments/tuner_bench/run.py --quick                   # at most 10 minutes, 2 cores
    python experiments/tuner_bench/run.py --runs 1200 --jobs 60 --output DIR
    python experiments/tuner_bench/run.py --report                  # prints the tables of --output

Writes runs.csv.gz, summary.json, curves.json and report.md into --output. Needs numpy, scipy,
scikit-learn, scikit-optimize and joblib; neither MPI nor the engine.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from job import CV, Job
from joblib import Parallel, delayed
from metrics import STEPS_AT, Curves, Row, measure
from policies import POLICIES, TITLES
from summary import by_surface, summarise, table
from surfaces import MEASURED, SIMULATED, Surface, all_surfaces

HERE = Path(__file__).resolve().parent
SHARES = {
    "ours": 1.0,
    "ours-no-prior": 0.3,
    "horovod": 0.1,
    "gp_minimize": 0.1,
    "bo15": 0.1,
    "random": 0.3,
}
"""Runs of each policy, of --runs; a quarter of --runs at least, until each surface has one."""
QUICK_RUNS = 60
Task = tuple[str, str, int]
"""(policy, surface, seed)"""


def tasks(runs: int, policies: Sequence[str], names: Sequence[str]) -> list[Task]:
    """Return the runs: surfaces in turns, so that all get the same number (one more or less)."""
    result = []
    for policy in policies:
        count = max(min(runs // 4, len(names)), round(runs * SHARES[policy]), 1)
        result += [(policy, names[k % len(names)], k // len(names)) for k in range(count)]
    return result


def run_one(task: Task, surface: Surface, cv: float) -> tuple[Row, Curves]:
    """Make one run; its randomness follows from the task alone."""
    policy, _, seed = task
    stream = [sum(map(ord, surface.name)), seed, sum(map(ord, policy))]
    for_noise, for_policy = np.random.SeedSequence(stream).spawn(2)
    job = Job(surface=surface, rng=np.random.default_rng(for_noise), cv=cv)
    ending = POLICIES[policy](job, np.random.default_rng(for_policy))
    return measure(job, ending, policy=policy, seed=seed, steps=job.steps)


def run_batch(batch: Sequence[Task], cv: float) -> list[tuple[Row, Curves]]:
    """Make some runs on one surface; computes its oracle once."""
    surface = _surface(batch[0][1])
    return [run_one(task, surface, cv) for task in batch]


_surfaces: dict[str, Surface] = {}


def _surface(name: str) -> Surface:
    if not _surfaces:
        _surfaces.update(all_surfaces())
    return _surfaces[name]


def batches(chosen: Sequence[Task], most: int) -> Iterator[list[Task]]:
    """Yield tasks of one surface together, at most ``most`` of them; the long ones first."""
    order = {name: number for number, name in enumerate(("horovod", "gp_minimize"))}
    groups: dict[tuple[str, str], list[Task]] = {}
    for task in chosen:
        groups.setdefault((task[0], task[1]), []).append(task)
    for key in sorted(groups, key=lambda key: order.get(key[0], 9)):
        for start in range(0, len(groups[key]), most):
            yield groups[key][start : start + most]


def run_all(chosen: Sequence[Task], jobs: int, cv: float) -> list[tuple[Row, Curves]]:
    """Make all runs on ``jobs`` processes."""
    most = max(1, min(5, len(chosen) // (4 * jobs)))
    parts = Parallel(n_jobs=jobs, batch_size=1, verbose=1)(
        delayed(run_batch)(batch, cv) for batch in batches(chosen, most)
    )
    return [result for part in parts for result in part]


def about(arguments: argparse.Namespace, seconds: float) -> dict[str, Any]:
    import sklearn
    import skopt

    return {
        "runs": arguments.runs,
        "noise": arguments.noise,
        "jobs": arguments.jobs,
        "seconds": round(seconds),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scikit-learn": sklearn.__version__,
        "scikit-optimize": skopt.__version__,
    }


def curves_of(results: Sequence[tuple[Row, Curves]]) -> dict[str, Any]:
    """Return quantiles over the runs of each kind and policy, at ``STEPS_AT``."""
    content: dict[str, Any] = {"steps": STEPS_AT.tolist()}
    for kind in (SIMULATED, MEASURED):
        for policy in POLICIES:
            mine = [c for row, c in results if (row.kind, row.policy) == (kind, policy)]
            if mine:
                content[f"{kind} {policy}"] = {
                    "regret": _quantiles(np.array([curve.regret for curve in mine])),
                    "lost": _quantiles(np.array([curve.lost for curve in mine])),
                }
    return content


def _quantiles(values: np.ndarray) -> dict[str, list[float]]:
    shares = {"p10": 0.1, "p50": 0.5, "p90": 0.9, "max": 1.0}
    found = {name: np.quantile(values, share, axis=0) for name, share in shares.items()}
    return {name: [float(f"{v:.4g}") for v in column] for name, column in found.items()}


def write(folder: Path, results: Sequence[tuple[Row, Curves]], facts: dict[str, Any]) -> None:
    """Store the results of a bench in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [row.as_dict() for row, _ in results]
    with gzip.open(folder / "runs.csv.gz", "wt", newline="", compresslevel=9) as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    kinds = {
        kind: {
            policy: summarise(mine)
            for policy in POLICIES
            if (mine := [r for r in rows if (r["kind"], r["policy"]) == (kind, policy)])
        }
        for kind in (SIMULATED, MEASURED)
    }
    (folder / "summary.json").write_text(json.dumps({"about": facts, **kinds}, indent=1) + "\n")
    (folder / "curves.json").write_text(json.dumps(curves_of(results)) + "\n")
    (folder / "report.md").write_text(report(rows, facts) + "\n")


def report(rows: Sequence[dict[str, Any]], facts: dict[str, Any]) -> str:
    """Return the tables."""
    parts = [", ".join(f"{name} {value}" for name, value in facts.items())]
    parts += [table(rows, TITLES, kind) for kind in (SIMULATED, MEASURED)]
    parts += ["Ours, by surface:", by_surface(rows, "ours")]
    return "\n\n".join(parts)


def read(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the runs and the facts that ``write`` stored."""
    with gzip.open(folder / "runs.csv.gz", "rt", newline="") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    return rows, json.loads((folder / "summary.json").read_text())["about"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=1200, help="runs of ours; fewer of the peers")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_RUNS} runs of ours")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--noise", type=float, default=CV, help="coefficient of variation")
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), choices=list(POLICIES))
    parser.add_argument("--surfaces", nargs="+", metavar="NAME", help="words in surfaces' names")
    parser.add_argument("--output", type=Path, default=HERE / "results")
    parser.add_argument("--report", action="store_true", help="print the stored results only")
    arguments = parser.parse_args()
    if arguments.report:
        print(report(*read(arguments.output)))
        return
    arguments.runs = QUICK_RUNS if arguments.quick else arguments.runs
    words = arguments.surfaces or [""]
    names = [name for name in all_surfaces() if any(word in name for word in words)]
    start = time.monotonic()
    chosen = tasks(arguments.runs, arguments.policies, names)
    results = run_all(chosen, arguments.jobs, arguments.noise)
    facts = about(arguments, time.monotonic() - start)
    write(arguments.output, results, facts)
    print((arguments.output / "report.md").read_text())


if __name__ == "__main__":
    main()
