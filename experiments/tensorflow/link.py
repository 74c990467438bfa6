"""A Keras job on two hosts at 200 Mbit/s: tuned, replayed in turns with the default, its timeline.

    build/tensorflow-env/bin/python experiments/tensorflow/link.py [--report]

Needs root and iproute2; see README.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from harness import machine, machine_line

from autotune.result import environment, gain_text, read_result
from autotune.timeline import analyse
from cluster.hosts import TwoHosts

HERE = Path(__file__).resolve().parent
RESULT = HERE / "link.json"
TIMELINE = HERE / "timeline.txt"
RATE_MBIT = 200
RANKS = (2, 2)
FIRST = 50
"""Steps of a timed job that do not count."""


def train(
    hosts: TwoHosts, steps: int, stats: Path, limit_s: float, environ: dict[str, str]
) -> tuple[list[float], list[str]]:
    """Run the script; return its times of steps in ms and what rank 0's tuner has said."""
    words = [sys.executable, HERE / "train.py", "--steps", str(steps), "--stats", stats]
    environ = {"TF_CPP_MIN_LOG_LEVEL": "2", "OMP_NUM_THREADS": "1", **environ}
    process = hosts.start_on_a([*hosts.without_mpi(RANKS), *words], **environ)
    out, err = process.communicate(timeout=limit_s)
    if process.returncode:
        sys.exit(f"{process.args} failed ({process.returncode}):\n{out}\n{err}")
    said = [line for line in err.splitlines() if "autotune:" in line]
    return json.loads(stats.read_text()), said


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Tune the job, then run it under the default and the answer in turns."""
    log, stats = folder / "log.csv", folder / "stats.json"
    tuned_timeline = folder / "tuning.json"
    switches = {
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_AUTOTUNE_LOG": str(log),
        "HOROVOD_TIMELINE": str(tuned_timeline),
    }
    found: dict[str, Any] = {"machine": machine(), "steps": options.steps}
    found["versions"] = {name: version(name) for name in ("tensorflow-cpu", "keras")}
    with TwoHosts(rate_mbit=RATE_MBIT) as hosts:
        found["tuning_ms"], found["said"] = train(
            hosts, options.steps, stats, options.limit_s, switches
        )
        print("\n".join(found["said"]), flush=True)
        result = read_result(str(log))
        found |= {
            "finished": result.finished,
            "certified": result.certified,
            "gain": result.gain,
            "gain_text": gain_text(result),
            "answer": environment(result.params),
            "pairs": [],
            "timelines": {},
        }
        ways = {"default": {}, "tuned": found["answer"]}
        for pair in range(options.pairs):
            times: dict[str, list[float]] = {}
            for way in list(ways)[:: 1 if pair % 2 == 0 else -1]:
                timeline = folder / f"{way}.json"
                environ = {**ways[way], "HOROVOD_TIMELINE": str(timeline)}
                times[way], _ = train(hosts, options.timed_steps, stats, options.limit_s, environ)
                found["timelines"][way] = summed(timeline)
            found["pairs"].append(times)
            print(f"pair {pair + 1}: {pair_text(times)}", flush=True)
    words = [sys.executable, "-m", "autotune", "timeline"]
    texts = [
        subprocess.run([*words, *files], capture_output=True, text=True, check=True).stdout
        for files in (
            [str(tuned_timeline)],
            [str(folder / "default.json"), str(folder / "tuned.json")],
        )
    ]
    found["timelines"]["tuning"] = summed(tuned_timeline)
    TIMELINE.write_text("\n".join(texts).replace(f"{folder}/", ""))
    return found


def summed(timeline: Path) -> dict[str, Any]:
    """Return what a timeline says of its steps, in ms."""
    steps = analyse(str(timeline)).steps
    counted = list(steps.duration_us)[FIRST:]
    return {
        "steps": len(steps),
        "source": steps.source,
        "median_ms": statistics.median(counted) / 1000 if counted else None,
    }


def pair_text(times: dict[str, list[float]]) -> str:
    default, tuned = (statistics.median(times[way][FIRST:]) for way in ("default", "tuned"))
    return (
        f"default {default:.1f}, tuned {tuned:.1f} ms a step, {100 * (default / tuned - 1):+.1f} %"
    )


def report(found: dict[str, Any]) -> str:
    """Return what the README has of the stored result."""
    versions = ", ".join(f"{name} {text}" for name, text in found["versions"].items())
    changed = ", ".join(f"{name}={text}" for name, text in found["answer"].items())
    lines = [f"{machine_line(found['machine'])}; {versions}", ""]
    lines += [f"finished: {found['finished']}; gain {found['gain_text']}", f"answer: {changed}"]
    lines += [f"pair {i + 1}: {pair_text(times)}" for i, times in enumerate(found["pairs"])]
    for name, each in found["timelines"].items():
        lines.append(
            f"timeline of {name}: {each['steps']} steps by {each['source']}, "
            f"median {each['median_ms']:.1f} ms"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=3000, help="of the tuned job")
    parser.add_argument("--timed-steps", type=int, default=300)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--limit-s", type=float, default=500, help="for each job")
    parser.add_argument("--report", action="store_true", help="print the stored result only")
    options = parser.parse_args()
    if not options.report:
        with tempfile.TemporaryDirectory(prefix="keras-link-") as folder:
            found = measure(options, Path(folder))
        RESULT.write_text(json.dumps(found) + "\n")
    print(report(json.loads(RESULT.read_text())))


if __name__ == "__main__":
    main()
