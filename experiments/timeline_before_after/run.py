"""Timelines of a job on two hosts at 200 Mbit/s, before and after tuning: see README.md.

python run.py [FOLDER]     needs root and iproute2; under three minutes
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tests"))

from autotune.result import environment, read_result  # noqa: E402
from autotune.timeline import analyse, plot  # noqa: E402
from autotune.timeline.compare import compare  # noqa: E402
from cluster.hosts import TwoHosts  # noqa: E402

RANKS = (2, 2)
STEPS = 40
HOROVOD = {
    "HOROVOD_FUSION_THRESHOLD": str(128 << 20),
    "HOROVOD_CYCLE_TIME": "1",
    "HOROVOD_CACHE_CAPACITY": "1024",
}
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
    plot.save(list(reports.values()), str(folder / "steps.svg"))
    content = {
        "tuned": tuned,
        "finished": result.finished,
        "reports": {
            name: {**r.as_dict(), "tensors": len(r.tensors)} for name, r in reports.items()
        },
        "comparisons": {
            name: [vars(row) for row in compare(reports[name], reports["tuned"])]
            for name in ("horovod", "default")
        },
    }
    (folder / "results.json").write_text(json.dumps(content, indent=1) + "\n")
    for name, rows in content["comparisons"].items():
        print(f"{name} -> tuned {tuned if name == 'horovod' else ''}")
        for row in rows:
            print("  {label}: {before_us:.0f} -> {after_us:.0f} us, {factor}".format(**row))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("build/timeline_before_after"))
