"""Runs all parts of the experiment, writes results.json and prints the tables of the README."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FLAGS = ["--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"]
MIB = 1024 * 1024


def environment(part: str) -> dict[str, str]:
    """Return the ranks' environment: one thread each; the tuner on in part e only."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("HOROVOD_")}
    environ |= {"OMP_NUM_THREADS": "1"}
    if os.geteuid() == 0:
        for prefix in ("OMPI", "PRTE"):
            environ |= {f"{prefix}_ALLOW_RUN_AS_ROOT{end}": "1" for end in ("", "_CONFIRM")}
    if part == "e":
        environ |= {"HOROVOD_AUTOTUNE": "1"}
    return environ


def run_part(part: str, ranks: int, passes: int) -> dict[str, Any]:
    """Run one part and return what rank 0 measured."""
    mpirun = Path(sys.executable).parent / "mpirun"
    command = [str(mpirun) if mpirun.exists() else "mpirun", "-np", str(ranks), *FLAGS]
    command += [sys.executable, str(HERE / "rank.py"), part, "--passes", str(passes)]
    print("$", " ".join(command), file=sys.stderr, flush=True)
    done = subprocess.run(
        command, env=environment(part), capture_output=True, text=True, timeout=900, check=False
    )
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            result: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
            return result
    sys.exit(f"part {part} failed ({done.returncode}):\n{done.stdout}\n{done.stderr}")


def machine() -> dict[str, Any]:
    """Return what the figures depend on."""
    cpu = next(
        (
            line.split(":")[1].strip()
            for line in open("/proc/cpuinfo")
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "mpi4py": version("mpi4py"),
        "mpirun_flags": " ".join(FLAGS),
        "commit": commit,
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
    }


def threshold_name(value: int) -> str:
    """Return a threshold for people."""
    return f"{value / MIB:g} MiB"


def grid_table(cells: list[dict[str, Any]], scale: float, unit: str) -> str:
    """Return a Markdown table threshold x cycle of medians, divided by ``scale``."""
    cycles = sorted({cell["cycle_ms"] for cell in cells})
    thresholds = sorted({cell["threshold"] for cell in cells})
    median = {(c["threshold"], c["cycle_ms"]): c["ms"]["median"] / scale for c in cells}
    lines = [f"| {unit} | " + " | ".join(f"{c:g} ms" for c in cycles) + " |"]
    lines.append("|" + " --- |" * (len(cycles) + 1))
    for threshold in thresholds:
        row = " | ".join(f"{median[threshold, cycle]:.2f}" for cycle in cycles)
        lines.append(f"| {threshold_name(threshold)} | {row} |")
    return "\n".join(lines)


def spread(values: dict[str, float], digits: int = 1) -> str:
    """Return "median (min-max)"."""
    return f"{values['median']:.{digits}f} ({values['min']:.{digits}f}-{values['max']:.{digits}f})"


def default_cell(part: dict[str, Any]) -> dict[str, Any]:
    """Return the grid cell nearest to the defaults."""
    defaults = part["defaults"]

    def distance(cell: dict[str, Any]) -> tuple[float, float]:
        return (
            abs(cell["threshold"] - defaults["fusion_threshold_bytes"]),
            abs(cell["cycle_ms"] - defaults["cycle_time_ms"]),
        )

    return min(part["cells"], key=distance)


def protocol_line(step: dict[str, float]) -> str:
    """Return where the time of a step goes, from the engine's own counters."""
    copies = step["pack_ms"] + step["unpack_ms"]
    share = 100 * step["protocol_ms"] / step["step_ms"]
    return (
        f"(b) at the defaults, rank 0: step {step['step_ms']:.1f} ms, transfer "
        f"{step['transfer_ms']:.1f}, copies {copies:.2f}, protocol {step['protocol_ms']:.2f} "
        f"({share:.1f} %), waiting for the last rank to announce {step['skew_ms']:.2f}"
    )


def report(results: dict[str, Any]) -> str:
    """Return the tables."""
    a, b, c, d, e = (results[part] for part in "abcde")
    floor = min(b["floor"], key=lambda entry: entry["ms"]["median"])
    floor_ms = floor["ms"]["median"]
    best = min(b["cells"], key=lambda cell: cell["ms"]["median"])
    default = default_cell(b)
    small_default = default_cell(c)
    small_best = min(c["cells"], key=lambda cell: cell["ms"]["median"])
    piece = "flat" if floor["piece"] > 1 << 30 else threshold_name(floor["piece"])
    worst_idle = max(d["percent_of_a_core_by_rank"])
    share = 100 * e["hook_us"]["mean"] / 1e3 / e["step_ms"]["mean"]
    return "\n".join(
        [
            "```\n" + json.dumps(results["machine"], indent=1) + "\n```",
            f"(a) 4 kB synchronous loop: {spread(a['ours_ms'], 4)} ms a call; "
            f"bare MPI_Allreduce from Python: {spread(a['bare_mpi_ms'], 4)} ms",
            f"(b) floor: {spread(floor['ms'])} ms (pieces: {piece}); "
            f"default ({threshold_name(default['threshold'])}, {default['cycle_ms']:g} ms): "
            f"{spread(default['ms'])} ms = {default['ms']['median'] / floor_ms:.2f} x floor; "
            f"best ({threshold_name(best['threshold'])}, {best['cycle_ms']:g} ms): "
            f"{spread(best['ms'])} ms = {best['ms']['median'] / floor_ms:.2f} x floor",
            "",
            grid_table(b["cells"], floor_ms, "x floor"),
            "",
            protocol_line(b["step"]),
            "",
            f"(c) {c['tensors']} tensors, {c['bytes'] / 1e6:.2f} MB: without communication "
            f"{spread(c['without_communication_ms'])} ms; default "
            f"{spread(small_default['ms'])} ms; best ({threshold_name(small_best['threshold'])}, "
            f"{small_best['cycle_ms']:g} ms) "
            f"{spread(small_best['ms'])} ms",
            "",
            grid_table(c["cells"], 1.0, "ms a step"),
            "",
            f"(d) idle engine: {worst_idle:.2f} % of a core on the busiest rank",
            f"(e) tuner on: {e['hook_us']['mean']:.1f} us a step on rank 0's training thread "
            f"(median {e['hook_us']['median']:.1f}), {share:.2f} % of a step of "
            f"{e['step_ms']['mean']:.1f} ms",
        ]
    )


def main() -> None:
    """Run, store and report; with --report only the last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--passes", type=int, default=7)
    parser.add_argument("--output", type=Path, default=HERE / "results.json")
    parser.add_argument(
        "--report", action="store_true", help="print the tables of the stored results"
    )
    arguments = parser.parse_args()
    if not arguments.report:
        results: dict[str, Any] = {"machine": machine(), "ranks": arguments.ranks}
        for part in "abcde":
            results[part] = run_part(part, arguments.ranks, arguments.passes)
        arguments.output.write_text(json.dumps(results, indent=1) + "\n")
    print(report(json.loads(arguments.output.read_text())))


if __name__ == "__main__":
    main()
