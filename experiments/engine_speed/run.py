"""Runs the parts of the experiment, writes results.json and prints the tables of the README.

python experiments/engine_speed/run.py [PART ...] [--report]

Parts that are not named keep their stored results.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import machine, run_ranks, scheduling
from report import report

HERE = Path(__file__).resolve().parent
YIELD = ("--mca", "mpi_yield_when_idle", "1")


@dataclass(frozen=True, kw_only=True)
class Part:
    """One job: its ranks, the words after python, and whether ranks outnumber cores."""

    ranks: int
    words: tuple[str, ...]
    flags: tuple[str, ...] = ()
    environ: dict[str, str] = field(default_factory=dict)


PARTS = {
    "a": Part(ranks=2, words=("rank.py", "a")),
    "b": Part(ranks=2, words=("rank.py", "b")),
    "b-bert": Part(
        ranks=2, words=("rank.py", "b", "--model", "bert", "--grid", "narrow", "--passes", "6")
    ),
    "b-4": Part(ranks=4, words=("rank.py", "b", "--grid", "narrow", "--passes", "4"), flags=YIELD),
    "c": Part(ranks=2, words=("rank.py", "c")),
    "d": Part(ranks=2, words=("rank.py", "d")),
    "e": Part(ranks=2, words=("rank.py", "e"), environ={"HOROVOD_AUTOTUNE": "1"}),
    "f-2": Part(ranks=2, words=("memory.py",)),
    "f-4": Part(ranks=4, words=("memory.py",), flags=YIELD),
    "f-bare": Part(ranks=2, words=("memory.py", "--bare", "--steps", "20")),
    "f-hosts": Part(ranks=4, words=("memory.py", "--hosts", "2"), flags=YIELD),
}


def measure(part: Part) -> dict[str, Any]:
    """Run one part and return what rank 0 measured, and when and how."""
    words = [HERE / part.words[0], *part.words[1:]]
    print(f"{part.ranks} ranks:", *part.words, file=sys.stderr, flush=True)
    about = machine()
    taken = {key: about[key] for key in ("commit", "date", "load_at_start")}
    result = run_ranks(part.ranks, words, 900, flags=part.flags, **part.environ)
    return {
        "taken": {**taken, "scheduling": scheduling(), "more_flags": " ".join(part.flags)},
        "result": result,
    }


def main() -> None:
    """Run, store and report; with --report only the last."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--output", type=Path, default=HERE / "results.json")
    parser.add_argument("--report", action="store_true", help="print the stored results only")
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"expected parts of {', '.join(PARTS)}, got {', '.join(sorted(unknown))}")
    if not arguments.report:
        stored = json.loads(arguments.output.read_text()) if arguments.parts else {"parts": {}}
        parts = stored["parts"]
        for name in arguments.parts or PARTS:
            parts[name] = measure(PARTS[name])
        content = {"machine": machine(), "parts": {n: parts[n] for n in PARTS if n in parts}}
        arguments.output.write_text(json.dumps(content, indent=1) + "\n")
    print(report(json.loads(arguments.output.read_text())))


if __name__ == "__main__":
    main()
