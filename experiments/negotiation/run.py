"""How negotiation grows with the number of ranks of one host (README.md)."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from harness import machine, run_ranks

HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8, 16, 32, 64])
    parser.add_argument(
        "--fan-out",
        type=int,
        default=0,
        help="how many ranks report to one; 0: the engine's choice",
    )
    parser.add_argument("--output", type=Path, default=HERE / "results.json")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    table = {}
    print("ranks  step us  protocol us  skew us  transfer us  heard  (medians of rounds)")
    for ranks in options.ranks:
        if ranks > cores:
            print(f"{ranks:5}  not run: {cores} cores")
            continue
        fan_out = str(options.fan_out)
        rounds = run_ranks(ranks, [HERE / "rank.py"], 120, HOROVOD_CONTROL_FANOUT=fan_out)
        table[ranks] = rounds
        medians = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
        print(
            f"{ranks:5}  {medians['step_us']:7.0f}  {medians['protocol_ns'] / 1e3:11.0f}"
            f"  {medians['skew_ns'] / 1e3:7.0f}  {medians['transfer_ns'] / 1e3:11.0f}"
            f"  {medians['heard']:5.1f}",
            flush=True,
        )
    options.output.write_text(json.dumps({"machine": machine(), "rounds": table}, indent=1))


if __name__ == "__main__":
    main()
