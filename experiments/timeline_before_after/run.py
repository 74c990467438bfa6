"""Timelines of a job on two hosts at 200 Mbit/s, before and after tuning: see README.md.

python run.py [FOLDER]     needs root and iproute2; under three minutes
python run.py --draw       draws steps.svg from results.json
"""

from __future__ import annotations

import json
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tests"))

from autotune.result import environment, read_result  # noqa: E402
from autotune.timeline import analyse, plot  # noqa: E402
from autotune.timeline.compare import compare  # noqa: E402
from autotune.timeline.phases import Phase  # noqa: E402
from autotune.timeline.report import StepTable, TimelineReport  # noqa: E402
from cluster.hosts import TwoHosts  # noqa: E402

RANKS = (2, 2)
STEPS = 40
HOROVOD = {
    "HOROVOD_FUSION_THRESHOLD": str(128 << 20),
    "HOROVOD_CYCLE_TIME": "1",
    "HOROVOD_CACHE_CAPACITY": "1024",
}
NAMES = {"horovod": "Horovod's defaults", "default": "our defaults", "tuned": "tuned"}
TUNER = {
    "HOROVOD_AUTOTUNE": "1",
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "1",
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "5",
    "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "12",
    "HOROVOD_AUTOTUNE_BUDGET": "1",
    "HOROVOD_AUTOTUNE_SEED": "1",
}


def job(hosts: TwoHosts, path: str, steps: int, environ: dict[str, str]) -> None:
    words = [sys.executable, HERE / "train.py", path, str(steps)]
    try:
        done = hosts.run(RANKS, words, 60, **environ)
    except subprocess.TimeoutExpired:
        if path != "-":
            raise
        return  # tuning was not over: the best so far counts
    if done.returncode != 0:
        sys.exit(done.stderr)


def kept(steps: StepTable) -> dict[str, Any]:
    """Return single steps to three digits, for JSON."""

    def rounded(column: array[float]) -> list[float]:
        return [float(f"{value:.3g}") for value in column]

    phases = {phase.name.lower(): rounded(steps.phases[phase]) for phase in Phase}
    return {
        "phases_us": {name: column for name, column in phases.items() if any(column)},
        "late_rank": list(steps.late_rank),
        "late_us": rounded(steps.late_us),
    }


def drawable(name: str, steps: dict[str, Any]) -> TimelineReport:
    """Return what ``plot`` draws of a run: its steps, as ``kept`` has kept them."""
    nothing = [0.0] * len(steps["late_us"])
    phases = tuple(
        array("d", steps["phases_us"].get(phase.name.lower(), nothing)) for phase in Phase
    )
    table = StepTable(
        source="STEP events",
        start_us=array("d", nothing),
        duration_us=array("d", map(sum, zip(*phases, strict=True))),
        phases=phases,
        late_rank=array("i", steps["late_rank"]),
        late_us=array("d", steps["late_us"]),
    )
    return TimelineReport(path=name, steps=table)


def draw(results: Path) -> None:
    """Draw each step of the runs in ``results``, beside it."""
    runs = json.loads(results.read_text())["steps"]
    reports = [drawable(NAMES[name], steps) for name, steps in runs.items()]
    plot.save(reports, str(results.with_name("steps.svg")))


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log.csv"
    for old in folder.glob("log*"):
        old.unlink()
    files = {name: str(folder / f"{name}.json") for name in ("horovod", "default", "tuned")}
    with TwoHosts(rate_mbit=200) as hosts:
        job(hosts, files["horovod"], STEPS, HOROVOD)
        job(hosts, files["default"], STEPS, {})
        job(hosts, "-", 4000, {**TUNER, "HOROVOD_AUTOTUNE_LOG": str(log)})
        result = read_result(str(log))
        tuned = environment(result.params)
        job(hosts, files["tuned"], STEPS, tuned)
    reports = {name: analyse(path) for name, path in files.items()}
    content = {
        "tuned": tuned,
        "finished": result.finished,
        "reports": {
            name: {**r.as_dict(), "tensors": len(r.tensors)} for name, r in reports.items()
        },
        "steps": {name: kept(report.steps) for name, report in reports.items()},
        "comparisons": {
            name: [vars(row) for row in compare(reports[name], reports["tuned"])]
            for name in ("horovod", "default")
        },
    }
    results = folder / "results.json"
    results.write_text(json.dumps(content, indent=1) + "\n")
    draw(results)
    for name, rows in content["comparisons"].items():
        print(f"{name} -> tuned {tuned if name == 'horovod' else ''}")
        for row in rows:
            print("  {label}: {before_us:.0f} -> {after_us:.0f} us, {factor}".format(**row))


if __name__ == "__main__":
    if sys.argv[1:] == ["--draw"]:
        draw(HERE / "results.json")
    else:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("build/timeline_before_after"))
