"""Run the bench: all policies on all surfaces in all kinds of time, with an oracle.

    python experiments/tuner_bench/run.py --quick                   # ours: what is wanted and seen
    python experiments/tuner_bench/run.py --runs 300 --output DIR   # of ours, in each kind
    python experiments/tuner_bench/run.py --report                  # prints the tables of --output
    python experiments/tuner_bench/run.py --report --readme         # ... and puts them in README

Writes runs.csv.gz, claims.csv.gz, summary.json, curves.json and report.md into --output. Needs
numpy, scipy, scikit-learn, scikit-optimize and joblib; neither MPI nor the engine.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import wanted
from claims import Claim
from job import CV, Job
from joblib import Parallel, delayed
from kinds import KINDS, STATIONARY
from memory import remembered
from metrics import STEPS_AT, Curves, Row, measure
from oracles import with_oracles
from policies import POLICIES, TITLES
from summary import by_surface, summarise, table
from surfaces import MEASURED, SIMULATED, Surface

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
QUICK_RUNS = 36
FILES = ("runs", "claims")
BEGIN, END = "<!-- run.py --report --readme writes from here -->", "<!-- ... to here -->"
PICTURE = """<picture>
<source media="(prefers-color-scheme: dark)" srcset="results/time-dark.svg">
<img alt="regret, and claims on the way, by kind of time" src="results/time-light.svg">
</picture>"""
Line = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Task:
    """One run; all its randomness follows from this."""

    policy: str
    kind: str
    surface: str
    seed: int

    def seeds(self) -> list[np.random.SeedSequence]:
        """Return seeds for the job and for the policy."""
        names = (self.surface, self.policy, "" if self.kind == STATIONARY else self.kind)
        words = [sum(map(ord, name)) for name in names]
        return np.random.SeedSequence([words[0], self.seed, *words[1:]]).spawn(2)


@dataclass(frozen=True, kw_only=True)
class Result:
    """What is kept of one run."""

    row: Row
    curves: Curves
    claims: list[Claim]

    def lines(self) -> list[dict[str, Any]]:
        """Return the claims as lines of a file."""
        row = self.row
        about = {name: getattr(row, name) for name in ("policy", "kind", "surface", "seed")}
        return [{**about, **claim.as_dict()} for claim in self.claims]


def tasks(
    runs: int, policies: Sequence[str], kinds: Sequence[str], names: Sequence[str], first: int = 0
) -> list[Task]:
    """Return the runs: surfaces in turns, so that all get the same number (one more or less).

    Args:
        runs: Of ours, in each kind.
        policies, kinds: Names.
        names: Of the surfaces.
        first: The first seed.
    """
    result = []
    for kind in kinds:
        mine = [name for name in names if KINDS[kind].runs_on(name)]
        for policy in policies if mine else ():
            count = max(min(runs // 4, len(mine)), round(runs * SHARES[policy]), 1)
            result += [
                Task(
                    policy=policy,
                    kind=kind,
                    surface=mine[k % len(mine)],
                    seed=first + k // len(mine),
                )
                for k in range(count)
            ]
    return result


def run_one(task: Task, surface: Surface, cv: float) -> Result:
    """Make one run."""
    for_noise, for_policy = task.seeds()
    rng = np.random.default_rng(for_noise)
    job = Job(surface=surface, rng=rng, kind=KINDS[task.kind], cv=cv)
    earlier = job.kind.memory.get(task.surface)
    if earlier:
        one = earlier[task.seed % len(earlier)]
        job.memory = (remembered(surface, one, seed=task.seed, cv=cv),)
    ending = POLICIES[task.policy](job, np.random.default_rng(for_policy))
    row, curves = measure(
        job, ending, policy=task.policy, kind=task.kind, seed=task.seed, steps=job.steps
    )
    return Result(row=row, curves=curves, claims=job.claims)


def run_batch(batch: Sequence[Task], cv: float) -> list[Result]:
    """Make some runs on one surface."""
    surface = _surface(batch[0].surface)
    return [run_one(task, surface, cv) for task in batch]


_surfaces: dict[str, Surface] = {}


def _surface(name: str) -> Surface:
    if not _surfaces:
        _surfaces.update(with_oracles())
    return _surfaces[name]


def batches(chosen: Sequence[Task], most: int) -> Iterator[list[Task]]:
    """Yield tasks of one surface together, at most ``most`` of them; the long ones first."""
    order = {name: number for number, name in enumerate(("horovod", "gp_minimize"))}
    groups: dict[tuple[str, str], list[Task]] = {}
    for task in chosen:
        groups.setdefault((task.policy, task.surface), []).append(task)
    for key in sorted(groups, key=lambda key: order.get(key[0], 9)):
        for start in range(0, len(groups[key]), most):
            yield groups[key][start : start + most]


def run_all(chosen: Sequence[Task], jobs: int, cv: float) -> list[Result]:
    """Make all runs on ``jobs`` processes."""
    most = max(1, min(8, len(chosen) // (4 * jobs)))
    parts = Parallel(n_jobs=jobs, batch_size=1, verbose=1)(
        delayed(run_batch)(batch, cv) for batch in batches(chosen, most)
    )
    return [result for part in parts for result in part]


def about(arguments: argparse.Namespace, seconds: float) -> dict[str, Any]:
    import sklearn
    import skopt

    return {
        "runs": arguments.runs,
        "first seed": arguments.seed_offset,
        "noise": arguments.noise,
        "jobs": arguments.jobs,
        "seconds": round(seconds),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scikit-learn": sklearn.__version__,
        "scikit-optimize": skopt.__version__,
    }


def curves_of(results: Sequence[Result]) -> dict[str, Any]:
    """Return quantiles over the runs of each kind, source and policy, at ``STEPS_AT``."""
    content: dict[str, Any] = {"steps": STEPS_AT.tolist()}
    groups: dict[tuple[str, str, str], list[Curves]] = {}
    for result in results:
        row = result.row
        source = row.source if row.kind == STATIONARY else row.kind
        groups.setdefault((row.kind, source, row.policy), []).append(result.curves)
    for (_, source, policy), mine in groups.items():
        content[f"{source} {policy}"] = {
            "regret": _quantiles(np.array([curve.regret for curve in mine])),
            "lost": _quantiles(np.array([curve.lost for curve in mine])),
        }
    return content


def claims_of(claims: Sequence[Line]) -> dict[str, Any]:
    """Return, of each kind, quantiles of claimed minus true gain after 2, 3, ... trials of ours."""
    content = {}
    for kind in KINDS:
        mine = [c for c in claims if (c["policy"], c["kind"]) == ("ours", kind)]
        trials = sorted({int(claim["trial"]) for claim in mine if claim["claimed"] != "nan"})
        parts = [
            [
                float(c["claimed"]) - float(c["true"])
                for c in mine
                if int(c["trial"]) == trial and not math.isnan(float(c["claimed"]))
            ]
            for trial in trials
        ]
        kept = [(trial, part) for trial, part in zip(trials, parts, strict=True) if part]
        if kept:
            columns = [_quantiles(np.array(part)[:, None]) for _, part in kept]
            content[kind] = {
                "trials": [trial for trial, _ in kept],
                **{name: [column[name][0] for column in columns] for name in columns[0]},
            }
    return content


def _quantiles(values: np.ndarray) -> dict[str, list[float]]:
    shares = {"p10": 0.1, "p50": 0.5, "p90": 0.9, "max": 1.0}
    found = {name: np.quantile(values, share, axis=0) for name, share in shares.items()}
    return {name: [float(f"{v:.4g}") for v in column] for name, column in found.items()}


def write(folder: Path, results: Sequence[Result], facts: dict[str, Any]) -> None:
    """Store the results of a bench in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    rows, claims = lines_of(results)
    for name, lines in zip(FILES, (rows, claims), strict=True):
        with gzip.open(folder / f"{name}.csv.gz", "wt", newline="", compresslevel=9) as file:
            writer = csv.DictWriter(file, list(lines[0]) if lines else [], lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)
    summary = {"about": facts, "wanted": seen_of(rows, claims), **summary_of(rows)}
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    curves = {**curves_of(results), "claims": claims_of(claims)}
    (folder / "curves.json").write_text(json.dumps(curves) + "\n")
    (folder / "report.md").write_text(report(rows, claims, facts) + "\n")


def lines_of(results: Sequence[Result]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the runs, and what they claimed on the way, as lines of files."""
    claims = [line for result in results for line in result.lines()]
    return [result.row.as_dict() for result in results], claims


def seen_of(rows: Sequence[Line], claims: Sequence[Line]) -> dict[str, Any]:
    """Return the figures that are wanted, of ours; JSON has no NaN."""
    return {
        kind: {name: None if math.isnan(value) else value for name, value in values.items()}
        for kind, values in wanted.by_kind(rows, claims, "ours").items()
    }


def summary_of(rows: Sequence[Line]) -> dict[str, Any]:
    """Return the other figures of each group and policy."""
    return {
        name: {
            policy: summarise(mine)
            for policy in POLICIES
            if (mine := [row for row in chosen if row["policy"] == policy])
        }
        for name, chosen in groups_of(rows).items()
    }


def groups_of(rows: Sequence[Line]) -> dict[str, list[Line]]:
    """Return the runs that stand in one table: stationary ones by source, others by kind."""
    groups = {
        source: [row for row in rows if (row["kind"], row["source"]) == (STATIONARY, source)]
        for source in (SIMULATED, MEASURED)
    }
    others = [kind for kind in KINDS if kind != STATIONARY]
    groups |= {kind: [row for row in rows if row["kind"] == kind] for kind in others}
    return {name: chosen for name, chosen in groups.items() if chosen}


def report(rows: Sequence[Line], claims: Sequence[Line], facts: Line) -> str:
    """Return all tables."""
    parts = [overview(rows, claims, facts)]
    stationary = [row for row in rows if row["kind"] == STATIONARY]
    if stationary:
        parts += ["Ours, the same speed all the time, by surface:", by_surface(stationary, "ours")]
    others = [row for row in rows if row["kind"] != STATIONARY]
    if others:
        parts += ["Ours, the other kinds together, by surface:", by_surface(others, "ours")]
    return "\n\n".join(parts)


def overview(rows: Sequence[Line], claims: Sequence[Line], facts: Line) -> str:
    """Return the tables of the README."""
    parts = [", ".join(f"{name} {value}" for name, value in facts.items())]
    if any(row["policy"] == "ours" for row in rows):
        parts += ["Ours, wanted and seen:", wanted.table(wanted.by_kind(rows, claims, "ours"))]
    parts += before()
    if (HERE / "results" / "time-light.svg").exists():
        parts += [PICTURE]
    after = HERE / "results" / "after_done.md"
    if after.exists():
        parts += ["After the end of tuning:", after.read_text().rstrip()]
    groups = groups_of(rows)
    for name in (SIMULATED, MEASURED):
        if name in groups:
            parts += [table(groups[name], TITLES, name)]
    others = [name for name in groups if name not in (SIMULATED, MEASURED)]
    peers = {row["policy"] for row in rows if row["kind"] != STATIONARY} - {"ours"}
    for name in others if peers else ():
        parts += [table(groups[name], TITLES, name)]
    return "\n\n".join(parts)


def put_into_readme(text: str) -> None:
    """Replace what stands between the marks in the README."""
    path = HERE / "README.md"
    head, rest = path.read_text().split(BEGIN)
    _, tail = rest.split(END)
    path.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{tail}")


def before() -> list[str]:
    """Return the stored figures of the tuner before it knew time."""
    path = HERE / "results" / "before" / "summary.json"
    if not path.exists():
        return []
    content = json.loads(path.read_text())
    seen = {
        kind: {name: math.nan if value is None else value for name, value in values.items()}
        for kind, values in content["wanted"].items()
    }
    commit = content["about"]["commit"]
    return [f"The tuner before (commit {commit}), wanted and seen:", wanted.table(seen)]


def read(folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]:
    """Return the runs, the claims and the facts that ``write`` stored."""
    lines = []
    for name in FILES:
        with gzip.open(folder / f"{name}.csv.gz", "rt", newline="") as file:
            lines.append(list(csv.DictReader(file)))
    return lines[0], lines[1], json.loads((folder / "summary.json").read_text())["about"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, help="runs of ours in each kind; fewer of the peers")
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK_RUNS} runs of ours; prints one table"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--noise", type=float, default=CV, help="coefficient of variation")
    parser.add_argument("--policies", nargs="+", choices=list(POLICIES))
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--surfaces", nargs="+", metavar="NAME", help="words in surfaces' names")
    parser.add_argument("--seed-offset", type=int, default=0, help="for other runs: first seed")
    parser.add_argument("--output", type=Path, help="folder; default: results, --quick: none")
    parser.add_argument("--report", action="store_true", help="print the stored results only")
    parser.add_argument("--readme", action="store_true", help="... and write them into the README")
    arguments = parser.parse_args()
    folder = arguments.output or HERE / "results"
    if arguments.report:
        print(report(*read(folder)))
        if arguments.readme:
            put_into_readme(overview(*read(folder)))
        return
    arguments.runs = arguments.runs or (QUICK_RUNS if arguments.quick else 300)
    policies = arguments.policies or (["ours"] if arguments.quick else list(POLICIES))
    words = arguments.surfaces or [""]
    names = [name for name in with_oracles(arguments.jobs) if any(word in name for word in words)]
    start = time.monotonic()
    chosen = tasks(arguments.runs, policies, arguments.kinds, names, arguments.seed_offset)
    results = run_all(chosen, arguments.jobs, arguments.noise)
    facts = about(arguments, time.monotonic() - start)
    if arguments.output or not arguments.quick:
        write(folder, results, facts)
    if arguments.quick:
        print(wanted.table(wanted.by_kind(*lines_of(results), policies[0])))
    else:
        print((folder / "report.md").read_text())


if __name__ == "__main__":
    main()
