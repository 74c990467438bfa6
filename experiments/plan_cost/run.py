"""Measure what planning the next trial costs, in CPU time.

    python experiments/plan_cost/run.py        # half a minute; writes results.json

Needs what tuner_bench needs; neither MPI nor the engine.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tuner_bench"))

import numpy as np

from autotune.bayes import BayesianOptimizer, SearchSpace
from autotune.bayes.surrogate import preload
from autotune.trial import CommParams
from autotune.tuning.budget import price_steps
from autotune.tuning.exploring.trend import PhysicsTrend
from autotune.tuning.steps.scoring import Reading

HERE = Path(__file__).resolve().parent
JOBS = ("resnet50 10G 4x2", "vgg16 1G 2x4", "bert-base 10G 8x4", "gpt2 10G 4x4")
READINGS = 20
NOISE = 0.02
WINDOW = 20
MODULES = (
    "numpy",
    "scipy.optimize",
    "sklearn.gaussian_process",
    "skopt.learning.gaussian_process.kernels",
)


def cpu_ms(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the CPU time of ``work`` in ms, and its result."""
    start = time.process_time()
    result = work()
    return 1000 * (time.process_time() - start), result


def import_ms(module: str) -> float:
    """Return the CPU time of importing a module in a new process, the fastest of three, in ms."""
    code = (
        "import time; a = time.process_time(); import {}; print(1000 * (time.process_time() - a))"
    )
    command = [sys.executable, "-c", code.format(module)]
    return min(float(subprocess.check_output(command, timeout=120)) for _ in range(3))


def run_job(name: str) -> dict[str, list[float]]:
    """Return CPU times in ms of the plans of one simulated job, by kind."""
    from surfaces import all_surfaces

    surface = all_surfaces()[name]
    default_us = surface.default_us
    reading = Reading(
        steps=10,
        duration_us=10 * default_us,
        payload_bytes=10 * sum(size for _, size in surface.operations),
        exposed_us=3 * default_us,
        score=1.0,
        slow_steps=0,
    )
    space = SearchSpace(
        CommParams(),
        frozen=surface.inert,
        tensors=len(surface.operations),
        payload=sum(size for _, size in surface.operations),
    )
    optimizer = BayesianOptimizer(space, rng=np.random.default_rng(0))
    matching, trend = cpu_ms(
        lambda: PhysicsTrend(
            surface.operations, CommParams(), reading, size=surface.size, hosts=surface.hosts
        )
    )
    optimizer.expect(trend)
    optimizer.tell(CommParams(), 0.0, 0.0)
    times: dict[str, list[float]] = {"first plan, with the cost model": [], "plan": [], "four": []}
    rng = np.random.default_rng(1)

    def plan() -> Any:
        optimizer.learn()
        return optimizer.ask((), lambda ratios: price_steps(ratios, WINDOW) / WINDOW)

    while len(optimizer.tried) < READINGS:
        spent, proposal = cpu_ms(plan)
        if len(optimizer.tried) == 1:
            times["first plan, with the cost model"].append(matching + spent)
        elif len(optimizer.tried) >= 5:
            times["plan"].append(spent)
            times["four"].append(cpu_ms(lambda: optimizer.ask_many((), None, 4))[0])
        truth = np.log(default_us / surface.truth(proposal.params).step_us)
        optimizer.tell(proposal.params, truth + NOISE * rng.standard_normal(), NOISE**2)
    return times


def spread(values: list[float]) -> dict[str, float]:
    """Return median, fastest and slowest, in ms."""
    return {
        "median": round(statistics.median(values), 1),
        "min": round(min(values), 1),
        "max": round(max(values), 1),
        "n": len(values),
    }


def main() -> None:
    imports = {module: round(import_ms(module)) for module in MODULES}
    loaded, _ = cpu_ms(preload)
    found = [run_job(name) for name in JOBS]
    plans = {kind: spread([value for times in found for value in times[kind]]) for kind in found[0]}
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    content = {
        "processor": next((x.split(":")[1].strip() for x in lines if "model name" in x), "?"),
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "versions": {n: version(n) for n in ("numpy", "scipy", "scikit-learn", "scikit-optimize")},
        "imports_ms": imports,
        "preload_ms": round(loaded),
        "plans_ms": plans,
    }
    (HERE / "results.json").write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
