"""The tables of the README from results.json."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

MIB = 2**20
WHO = ("floor", "default", "best")


def threshold_name(value: int) -> str:
    """Return a threshold for people."""
    return f"{value / MIB:g} MiB"


def spread(values: Mapping[str, float], digits: int = 1) -> str:
    """Return "median (min-max)"."""
    return f"{values['median']:.{digits}f} ({values['min']:.{digits}f}-{values['max']:.{digits}f})"


def quartiles(values: Sequence[float], digits: int = 1) -> str:
    """Return "median (first quartile-third quartile)"."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def grid_table(cells: Sequence[Mapping[str, Any]], scale: float, unit: str) -> str:
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


def default_cell(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the grid cell of the defaults."""
    defaults = part["defaults"]
    key = (defaults["fusion_threshold_bytes"], defaults["cycle_time_ms"])
    return next(cell for cell in part["cells"] if (cell["threshold"], cell["cycle_ms"]) == key)


def best_cell(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the grid cell with the smallest median."""
    cells: Sequence[Mapping[str, Any]] = part["cells"]
    return min(cells, key=lambda cell: cell["ms"]["median"])


def floor_of(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fastest size of pieces."""
    floors: Sequence[Mapping[str, Any]] = part["floor"]
    return min(floors, key=lambda entry: entry["ms"]["median"])


def gradients_table(jobs: Mapping[str, Mapping[str, Any]]) -> str:
    """Return, per job of part b, fresh samples of floor, default and best, and ratios of turns."""
    lines = ["| gradients | floor, ms | default, ms | best, ms | default / floor | best / floor |"]
    lines.append("|" + " --- |" * 6)
    for name, job in jobs.items():
        fresh, best = job["in_turns"], job["in_turns"]["best_setting"]
        pieces = "flat" if fresh["piece"] > 1 << 30 else threshold_name(fresh["piece"])
        setting = f"{threshold_name(best['fusion_threshold_bytes'])}, {best['cycle_time_ms']:g} ms"
        each = {who: [sum(turn) / len(turn) for turn in fresh[who]] for who in WHO}
        cells = [name, f"{quartiles(each['floor'])} ({pieces})", quartiles(each["default"])]
        cells += [f"{quartiles(each['best'])} ({setting})"]
        for who in ("default", "best"):
            ratios = [ours / base for ours, base in zip(each[who], each["floor"], strict=True)]
            cells.append(quartiles(ratios, 2))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def protocol_line(name: str, step: Mapping[str, float]) -> str:
    """Return where the time of a step goes, from the engine's own counters."""
    copies = step["pack_ms"] + step["unpack_ms"]
    share = 100 * step["protocol_ms"] / step["step_ms"]
    return (
        f"(b) {name}, at the defaults, rank 0: step {step['step_ms']:.1f} ms, transfer "
        f"{step['transfer_ms']:.1f}, copies {copies:.2f}, protocol {step['protocol_ms']:.2f} "
        f"({share:.1f} %), waiting for the last rank to announce {step['skew_ms']:.2f}"
    )


def memory_table(jobs: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return what each stage adds to the rank that grew most, and the segments, counted once."""
    lines = [
        "| 10^6 bytes | import | init | steps | sum, a rank | anonymous | segments, all ranks |"
    ]
    lines.append("|" + " --- |" * 7)
    for name, ranks in jobs.items():
        stages = [stage for stage in ("before", "import", "init", "steps") if stage in ranks[0]]
        worst = max(ranks, key=lambda r: r["steps"]["rss"] - r["before"]["rss"])
        grown = dict.fromkeys(("import", "init"), "-")
        for earlier, later in itertools.pairwise(stages):
            grown[later] = f"{worst[later]['rss'] - worst[earlier]['rss']:.1f}"
        total, private = (worst["steps"][k] - worst["before"][k] for k in ("rss", "private"))
        shared = sum(r["steps"]["shm"] - r["before"]["shm"] for r in ranks)
        cells = [name, grown["import"], grown["init"], grown["steps"]]
        lines.append(f"| {' | '.join(cells)} | {total:.1f} | {private:.1f} | {shared:.1f} |")
    return "\n".join(lines)


def taken_table(parts: Mapping[str, Any]) -> str:
    """Return when and how each part was taken."""
    lines = [
        "| part | date | commit | load before | scheduling | mpirun, too |",
        "|" + " --- |" * 6,
    ]
    for name, part in parts.items():
        taken = part["taken"]
        cells = [name, taken["date"], taken["commit"], str(taken["load_at_start"])]
        lines.append(f"| {' | '.join(cells)} | {taken['scheduling']} | {taken['more_flags']} |")
    return "\n".join(lines)


def report(content: Mapping[str, Any]) -> str:
    """Return all tables of the content of results.json."""
    results = {name: part["result"] for name, part in content["parts"].items()}
    a, b, c, d, e = (results[part] for part in "abcde")
    default, best = default_cell(c), best_cell(c)
    alone = c["without_communication_ms"]
    more = 100 * (default["ms"]["median"] / alone["median"] - 1)
    share = 100 * e["hook_us"]["mean"] / 1e3 / e["step_ms"]["mean"]
    ratio = a["ours_ms"]["median"] / a["bare_mpi_ms"]["median"]
    jobs = {
        "ResNet-50's 161 (102 MB), 2 ranks": b,
        "BERT-base's 199 (438 MB), 2 ranks": results["b-bert"],
        "ResNet-50's 161, 4 ranks on 2 cores": results["b-4"],
    }
    memory = {
        "engine, 2 ranks": results["f-2"],
        "engine, 4 ranks": results["f-4"],
        "engine, 2 + 2 ranks, two hosts by name": results["f-hosts"],
        "MPI_Allreduce alone, 2 ranks": results["f-bare"],
    }
    return "\n\n".join(
        [
            "```\n" + json.dumps(content["machine"], indent=1) + "\n```",
            taken_table(content["parts"]),
            f"(a) 4 kB synchronous loop: {spread(a['ours_ms'], 4)} ms a call; bare MPI_Allreduce "
            f"from Python: {spread(a['bare_mpi_ms'], 4)} ms; {ratio:.1f} x",
            "(b) Bare gradients, all asynchronous, then synchronised; floor, default and the "
            "grid's best in turns, medians (quartiles); ratios of one turn each:",
            gradients_table(jobs),
            *(protocol_line(name, job["step"]) for name, job in jobs.items()),
            *(
                grid_table(job["cells"], floor_of(job)["ms"]["median"], f"{name}: x floor")
                for name, job in jobs.items()
            ),
            f"(c) {c['tensors']} tensors, {c['bytes'] / 1e6:.2f} MB: without communication "
            f"{spread(alone)} ms; default {spread(default['ms'])} ms (+{more:.0f} %); best "
            f"({threshold_name(best['threshold'])}, {best['cycle_ms']:g} ms) "
            f"{spread(best['ms'])} ms",
            grid_table(c["cells"], 1.0, "ms a step"),
            f"(d) idle engine: {max(d['percent_of_a_core_by_rank']):.2f} % of a core on the "
            "busiest rank",
            f"(e) tuner on: {e['hook_us']['mean']:.1f} us a step on rank 0's training thread "
            f"(median {e['hook_us']['median']:.1f}), {share:.2f} % of a step of "
            f"{e['step_ms']['mean']:.1f} ms",
            "(f) What 100 steps of the 161 gradients add to the resident memory of a rank:",
            memory_table(memory),
        ]
    )
