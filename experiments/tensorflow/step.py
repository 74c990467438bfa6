"""A step with 162 gradients: what reducing them costs, by our operations and by numpy_function.

    build/tensorflow-env/bin/python experiments/tensorflow/step.py [--rounds 60] [--report]

Two ranks on this machine. Four ways take turns in one job; see README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from harness import PIPES, ROOT, collect, job_environment, machine, machine_line, spread, tell

HERE = Path(__file__).resolve().parent
RESULT = HERE / "step.json"
RANKS = 2
LAYERS, WIDTH, BATCH = 81, 128, 64
WAYS = ("no communication", "our operations", "one group", "numpy_function")
UNMEASURED, MEASURED = 2, 5
"""Steps of a visit."""


def rank_main(rounds: int) -> None:
    """Be one rank."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import horovod.tensorflow as hvd
    import tensorflow as tf
    from horovod.common import arrays
    from horovod.common.operation import How

    tf.config.threading.set_intra_op_parallelism_threads(1)
    hvd.init()
    rng = np.random.default_rng(1)
    first = [
        (rng.normal(size=shape) / WIDTH**0.5).astype(np.float32)
        for _ in range(LAYERS)
        for shape in ((WIDTH, WIDTH), (WIDTH,))
    ]
    weights = [tf.Variable(value) for value in first]
    inputs = np.random.default_rng(2 + hvd.rank()).normal(size=(BATCH, WIDTH))
    x = tf.constant(inputs.astype(np.float32))

    def reduce_arrays(*gradients: Any) -> list[Any]:
        """Average all of them by the same engine: handed over together, then waited for."""
        own = [np.ascontiguousarray(gradient) for gradient in gradients]
        results = [np.empty_like(gradient) for gradient in own]
        handles = [
            arrays._start(How("allreduce", f"array.{i}", op=hvd.Average), array, result.ctypes.data)
            for i, (array, result) in enumerate(zip(own, results, strict=True))
        ]
        arrays._finish(handles, (own, results))
        return results

    def make_step(way: str) -> Callable[[], Any]:
        @tf.function(autograph=False)
        def step() -> Any:
            with tf.GradientTape() as tape:
                h = x
                for weight, bias in zip(weights[::2], weights[1::2], strict=True):
                    h = tf.tanh(h @ weight + bias)
                loss = tf.reduce_mean(h * h)
            if way == "our operations":
                tape = hvd.DistributedGradientTape(tape)
            elif way == "one group":
                tape = hvd.DistributedGradientTape(tape, groups=1)
            gradients = tape.gradient(loss, weights)
            if way == "numpy_function":
                gradients = tf.numpy_function(reduce_arrays, gradients, [tf.float32] * len(weights))
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.assign_sub(0.01 * tf.ensure_shape(gradient, weight.shape))
            return loss

        return step

    def begin_anew() -> None:
        for weight, value in zip(weights, first, strict=True):
            weight.assign(value)

    steps = {way: make_step(way) for way in WAYS}
    ends: dict[str, list[Any]] = {}
    for way, step in steps.items():
        begin_anew()
        for _ in range(3):
            step()
        ends[way] = [weight.numpy() for weight in weights]
    for way in WAYS[2:]:
        pairs = zip(ends[way], ends["our operations"], strict=True)
        worst = max(float(np.abs(one - other).max()) for one, other in pairs)
        assert worst < 1e-6, f"{way}: weights differ by {worst}"

    order = np.random.default_rng(3)
    samples: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for place in order.permutation(len(WAYS)):
            way = WAYS[place]
            begin_anew()
            hvd.allreduce(tf.constant(0.0), name="meet")
            times = []
            for _ in range(UNMEASURED + MEASURED):
                begin = time.perf_counter()
                steps[way]()
                times.append(1000 * (time.perf_counter() - begin))
            samples[way].append(times[UNMEASURED:])
    if hvd.rank() == 0:
        about = {"tensors": len(weights), "bytes": sum(4 * value.size for value in first)}
        tell({**about, "ms": samples})
    hvd.shutdown()


def measure(rounds: int, limit_s: float) -> dict[str, Any]:
    """Run both ranks and return what rank 0 tells."""
    starter = ROOT / "tests" / "tiers" / "tcp_ranks.py"
    words = [sys.executable, starter, "-n", RANKS, sys.executable, __file__, "--rank"]
    words += ["--rounds", rounds]
    process = subprocess.Popen([str(word) for word in words], **PIPES, env=job_environment())
    result: dict[str, Any] = collect(process, limit_s)
    return result


def visits(result: dict[str, Any], way: str) -> list[float]:
    """Return the median of each visit in ms."""
    return [statistics.median(times) for times in result["ms"][way]]


def ratio(one: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    """Return the median ratio of rounds and its 95 % interval, by bootstrap over the rounds."""
    ratios = np.array(one) / np.array(other)
    draws = np.random.default_rng(0).choice(ratios, (10_000, len(ratios)))
    low, high = np.quantile(np.median(draws, axis=1), [0.025, 0.975])
    return float(np.median(ratios)), float(low), float(high)


def report(result: dict[str, Any]) -> str:
    """Return the table of the README."""
    versions = ", ".join(f"{name} {text}" for name, text in result["versions"].items())
    lines = [f"{machine_line(result['machine'])}; {versions}", ""]
    lines += ["| way | ms a step, median (min-max) of rounds | over numpy_function, 95 % |"]
    lines += ["| --- | --- | --- |"]
    for way in WAYS:
        own = visits(result, way)
        middle, low, high = ratio(own, visits(result, "numpy_function"))
        lines.append(f"| {way} | {spread(own)} | {middle:.3f} ({low:.3f} to {high:.3f}) |")
    lines += ["", f"{result['tensors']} gradients of {result['bytes'] / 1e6:.1f} MB a step, "]
    lines[-1] += f"{len(result['ms'][WAYS[0]])} rounds of {MEASURED} steps."
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--limit-s", type=float, default=400)
    parser.add_argument("--output", type=Path, default=RESULT)
    parser.add_argument("--report", action="store_true", help="print the stored result only")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        rank_main(options.rounds)
        return
    if not options.report:
        about = {
            "machine": machine(),
            "versions": {name: version(name) for name in ("tensorflow-cpu", "keras")},
        }
        result = {**about, **measure(options.rounds, options.limit_s)}
        options.output.write_text(json.dumps(result) + "\n")
    print(report(json.loads(options.output.read_text())))


if __name__ == "__main__":
    main()
