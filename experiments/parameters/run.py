"""Does each of the five parameters matter somewhere? Best against worst value in one job each.

python experiments/parameters/run.py [CASE ...] [--seconds 20] [--report]

Needs root and iproute2 for two hosts. Writes results.json and prints the table of the README. Cases
that are not named keep their stored results.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from cases import CASES, Case
from harness import collect, machine, machine_line, run_ranks, scheduling, size_name

from cluster.hosts import TwoHosts

HERE = Path(__file__).resolve().parent


def measure(name: str, case: Case, seconds: float) -> dict[str, Any]:
    """Run one case."""
    print(name, file=sys.stderr, flush=True)
    about = machine()
    words = [HERE / "rank.py", name, "--seconds", str(seconds)]
    if case.rate_mbit is None:
        result = run_ranks(2, words, 3 * seconds + 120)
    else:
        with TwoHosts(rate_mbit=case.rate_mbit) as hosts:
            process = hosts.start((2, 2), [sys.executable, *words])
            result = collect(process, 3 * seconds + 120)
    return {"taken": machine_line(about), "scheduling": scheduling(), **result}


def value_name(parameter: str, value: Any) -> str:
    """Return a value for people."""
    if parameter == "fusion_threshold_bytes":
        return size_name(value)
    if parameter.startswith("hierarchical"):
        return "two levels" if value else "one level"
    return f"{value:g} ms" if parameter == "cycle_time_ms" else str(value)


def quartiles(values: list[float]) -> str:
    """Return "median (first quartile-third quartile)"."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def report(path: Path) -> str:
    """Return the table of the stored results."""
    lines = ["| parameter | job | best, ms | worst, ms | worst / best | all values, ms |"]
    lines.append("|" + " --- |" * 6)
    cases = json.loads(path.read_text())
    for name, result in cases.items():
        case = CASES[name]
        (best, fast), (worst, slow) = result["in_turns"]
        ratio = statistics.median(slow) / statistics.median(fast)
        place = "2 ranks of one host"
        if case.rate_mbit is not None:
            place = f"2 hosts x 2 ranks, {case.rate_mbit} Mbit/s"
        searched = ", ".join(
            f"{value_name(case.parameter, value)}: {statistics.median(values):.1f}"
            for value, values in result["searched"]
        )
        pair = [
            f"{quartiles(values)} ({value_name(case.parameter, value)})"
            for value, values in ((best, fast), (worst, slow))
        ]
        cells = [f"`{case.parameter}`", f"{place}: {case.step}", *pair, f"{ratio:.2f}", searched]
        lines.append(f"| {' | '.join(cells)} |")
    taken = [
        f"* {name}: {result['taken']}, {result['scheduling']}" for name, result in cases.items()
    ]
    return "\n".join([*lines, "", *taken])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}")
    parser.add_argument("--seconds", type=float, default=20, help="time for each case")
    parser.add_argument("--output", type=Path, default=HERE / "results.json")
    parser.add_argument("--report", action="store_true", help="print the stored results only")
    arguments = parser.parse_args()
    if not arguments.report:
        known = arguments.output.exists()
        stored = json.loads(arguments.output.read_text()) if known else {}
        for name in arguments.cases or CASES:
            stored[name] = measure(name, CASES[name], arguments.seconds)
            ordered = {name: stored[name] for name in CASES if name in stored}
            arguments.output.write_text(json.dumps(ordered, indent=1) + "\n")
    print(report(arguments.output))


if __name__ == "__main__":
    main()
