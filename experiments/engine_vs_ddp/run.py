"""Ours against DistributedDataParallel on gloo, at defaults and at the best of 8 settings each.

python experiments/engine_vs_ddp/run.py [WORKLOAD ...] [--seconds 60] [--report]

Writes results.json (every sample) and prints the tables of the README. Workloads that are
not named keep their stored results.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import machine, machine_line, run_ranks, scheduling, size_name, spread

HERE = Path(__file__).resolve().parent
NAMES = {
    "gradients": "ResNet-50's gradients",
    "bert": "BERT-base's gradients",
    "resnet": "narrow ResNet-50",
    "encoder": "transformer encoder",
}

Turn = list[Any]


def name(turn: Turn) -> str:
    """Return a setting for people."""
    if turn[0] == "ddp":
        return f"{turn[1]:g} MB"
    return f"{size_name(turn[1])}, {turn[2]:g} ms"


def find(rows: list[Any], turn: Turn) -> list[float]:
    """Return the samples of one setting."""
    return next(values for who, values in rows if who == turn)


def summary_table(results: dict[str, Any]) -> str:
    """Return the samples that were taken in turns after the search."""
    lines = [
        "| workload | alone | ours, default | DDP, default | ours, best of 8 | DDP, best of 8 |"
    ]
    lines.append("|" + " --- |" * 6)
    for key, result in results.items():
        title = f"{NAMES[key]}: {result['tensors']} tensors, {result['payload_bytes'] / 1e6:.1f} MB"
        rows, (ours, ddp) = result["in_turns"], result["best"]
        cells = [title, spread(find(rows, ["alone"]))]
        cells += [spread(find(rows, turn)) for turn in result["defaults"]]
        cells += [f"{spread(find(rows, turn))} ({name(turn)})" for turn in (ours, ddp)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def ratio_table(results: dict[str, Any]) -> str:
    """Return DDP's median over ours."""
    lines = ["| workload | default / default | DDP's best / our default | best / best |"]
    lines.append("|" + " --- |" * 4)
    for key, result in results.items():
        rows = result["in_turns"]
        at = [statistics.median(find(rows, t)) for t in (*result["defaults"], *result["best"])]
        ours, ddp, our_best, ddp_best = at
        ratios = (ddp / ours, ddp_best / ours, ddp_best / our_best)
        lines.append(f"| {NAMES[key]} | {' | '.join(f'{r:.2f}' for r in ratios)} |")
    return "\n".join(lines)


def grid_table(result: dict[str, Any]) -> str:
    """Return the medians of the search."""
    cells = [f"{name(who)}: {statistics.median(values):.1f}" for who, values in result["grid"]]
    half = len(cells) // 2
    rows = [f"| {a} | {b} |" for a, b in zip(cells[:half], cells[half:], strict=True)]
    return "\n".join(["| ours, ms | DDP, ms |", "| --- | --- |", *rows])


def report(path: Path) -> str:
    """Return the tables of the stored results."""
    content = json.loads(path.read_text())
    results = content["workloads"]
    samples = min(len(values) for r in results.values() for _, values in r["in_turns"])
    parts = [f"{NAMES[key]}: {r['taken']}" for key, r in results.items()]
    parts = ["\n".join(f"* {line}" for line in parts)]
    parts += [f"{content['ranks']} ranks, ms a step, medians (min-max) of {samples} or more:"]
    parts += [summary_table(results), "DDP's time over ours:", ratio_table(results)]
    for key, result in results.items():
        parts += [f"{NAMES[key]}, the search:", grid_table(result)]
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60, help="time for each workload")
    parser.add_argument("--output", type=Path, default=HERE / "results.json")
    parser.add_argument("--report", action="store_true", help="print the stored results only")
    arguments = parser.parse_args()
    if not arguments.report:
        known = arguments.output.exists()
        stored = json.loads(arguments.output.read_text())["workloads"] if known else {}
        for key in arguments.workloads or NAMES:
            print(key, file=sys.stderr, flush=True)
            taken = f"{machine_line(machine())}, {scheduling()}"
            words = [HERE / "rank.py", key, "--seconds", str(arguments.seconds)]
            result = run_ranks(arguments.ranks, words, 3 * arguments.seconds + 120)
            stored[key] = {"taken": taken, **result}
        ordered = {key: stored[key] for key in NAMES if key in stored}
        content = {"machine": machine(), "ranks": arguments.ranks, "workloads": ordered}
        arguments.output.write_text(json.dumps(content, indent=1) + "\n")
    print(report(arguments.output))


if __name__ == "__main__":
    main()
