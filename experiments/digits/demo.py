"""Two acts: tune a training job on this machine, then one on two hosts with a slow link.

    python experiments/digits/demo.py --output demo-output

The first act shows every command on the smallest job. The second (second_act.py) shows what tuning
is for; it replaces this process.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from pathlib import Path

from act import Act, machine, start_here
from second_act import take_signals

SECOND_ACT = Path(__file__).with_name("second_act.py")


def first_act(options: argparse.Namespace, deadline: float) -> None:
    """Tune a job on this machine and time the answer, if it is not the default."""
    print(f"=== 1. A small network, {options.ranks} ranks on this machine ({machine()})")
    act = Act(
        start=start_here,
        launch=("-np", str(options.ranks)),
        output=options.output,
        epochs=options.epochs,
        timed_epochs=4,
        pairs=3,
        place=f"{options.ranks} ranks",
        deadline=deadline,
    )
    act.play()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("demo-output"))
    parser.add_argument("--ranks", type=int, default=2, help="ranks of the first act")
    parser.add_argument("--epochs", type=int, default=30, help="epochs of the first tuned job")
    parser.add_argument("--seconds", type=float, default=220, help="time for everything")
    options = parser.parse_args()
    take_signals()
    begin = time.monotonic()
    shutil.rmtree(options.output, ignore_errors=True)
    options.output.mkdir(parents=True)
    first_act(options, begin + 0.4 * options.seconds)
    print(f"\nLogs, checkpoint and step times: {options.output}/", flush=True)
    words = [sys.executable, str(SECOND_ACT), "--output", str(options.output / "two-hosts")]
    words += ["--seconds", str(options.seconds - (time.monotonic() - begin))]
    os.execv(sys.executable, words)


if __name__ == "__main__":
    main()
