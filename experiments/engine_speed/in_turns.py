"""Times two checkouts in turns: is the engine as fast as it was? See README.md.

    python experiments/engine_speed/in_turns.py --old ../old --rounds 3   # old, new, new, old ...
    python experiments/engine_speed/in_turns.py --report                  # prints the stored table

Each checkout has an environment of its own in .venv (``make setup``); its own run.py measures the
parts a, b and c.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import ROOT, machine, machine_line, scheduling

RESULTS = Path(__file__).resolve().parent / "in_turns.json"
PARTS = ("a", "b", "c")
UNITS = {
    "(a) 4 kB call over a bare one": lambda p: ratio(p["a"]["ours_ms"], p["a"]["bare_mpi_ms"]),
    "(a) 4 kB call, us": lambda p: 1000 * p["a"]["ours_ms"]["median"],
    "(b) 161 gradients, default over floor": lambda p: in_turns(p["b"], "default"),
    "(b) 161 gradients, best over floor": lambda p: in_turns(p["b"], "best"),
    "(c) a model's step, default, ms": lambda p: default_ms(p["c"]),
}


def ratio(ours: dict[str, float], bare: dict[str, float]) -> float:
    return ours["median"] / bare["median"]


def in_turns(part: dict[str, Any], who: str) -> float:
    fresh = part["in_turns"]
    turns = zip(fresh[who], fresh["floor"], strict=True)
    return statistics.median(
        statistics.fmean(ours) / statistics.fmean(base) for ours, base in turns
    )


def default_ms(part: dict[str, Any]) -> float:
    defaults = part["defaults"]
    wanted = (defaults["fusion_threshold_bytes"], defaults["cycle_time_ms"])
    cells = {(cell["threshold"], cell["cycle_ms"]): cell["ms"]["median"] for cell in part["cells"]}
    return cells[wanted]


def measure(checkout: Path) -> dict[str, Any]:
    """Return {part: what its rank 0 measured} of a checkout."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "results.json"
        output.write_text('{"parts": {}}')
        words = [checkout / ".venv/bin/python", checkout / "experiments/engine_speed/run.py"]
        subprocess.run(  # may fail to print a table of some parts: what counts is the file
            [*words, *PARTS, "--output", output],
            check=False,
            cwd=checkout,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=1800,
        )
        return {
            name: part["result"] for name, part in json.loads(output.read_text())["parts"].items()
        }


def commit(checkout: Path) -> str:
    words = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(
        words, cwd=checkout, capture_output=True, text=True, check=True
    ).stdout.strip()


def report(stored: dict[str, Any]) -> None:
    """Print a row per figure: medians of both, and the median ratio of a round's new and old."""
    print(machine_line(stored["machine"]), "-", stored["scheduling"])
    old, new = (stored["commits"][who] for who in ("old", "new"))
    print(f"\n| figure | old ({old}) | new ({new}) | new / old, each round |\n|{' --- |' * 4}")
    for unit in UNITS:
        each = {who: [one[unit] for one in stored["rounds"][who]] for who in ("old", "new")}
        ratios = ", ".join(f"{b / a:.2f}" for a, b in zip(each["old"], each["new"], strict=True))
        cells = [unit, *(f"{statistics.median(each[who]):.3g}" for who in ("old", "new")), ratios]
        print(f"| {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--old", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--report", action="store_true", help="print the stored table")
    options = parser.parse_args()
    if not options.report:
        if options.old is None:
            parser.error("--old is missing: a checkout that was set up with make setup")
        places = {"old": options.old.resolve(), "new": ROOT}
        rounds: dict[str, list[dict[str, float]]] = {"old": [], "new": []}
        about = machine()
        for number in range(options.rounds):
            for who in sorted(places, reverse=number % 2 == 0):
                parts = measure(places[who])
                rounds[who].append({unit: of(parts) for unit, of in UNITS.items()})
                print(who, rounds[who][-1], flush=True)
        stored = {"machine": about, "scheduling": scheduling(), "rounds": rounds}
        stored["commits"] = {who: commit(place) for who, place in places.items()}
        RESULTS.write_text(json.dumps(stored, indent=1) + "\n")
    report(json.loads(RESULTS.read_text()))


if __name__ == "__main__":
    main()
