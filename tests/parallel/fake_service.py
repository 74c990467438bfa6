"""A service for tests: answers as its first argument says, writes what it hears to a file."""

from __future__ import annotations

import sys
from pathlib import Path

from autotune.service import protocol

TRIED = {
    "fusion_threshold_bytes": 123_456,
    "cycle_time_ms": 0.25,
    "cache_capacity": 7,
    "hierarchical_allreduce": False,
    "hierarchical_allgather": False,
}
BEST = TRIED | {"fusion_threshold_bytes": 65_536}


def say(message: protocol.Message) -> None:
    sys.stdout.buffer.write(protocol.encode(message))
    sys.stdout.buffer.flush()


def main(behaviour: str, path: str) -> None:
    if behaviour == "crash":
        raise RuntimeError("no such luck")
    with Path(path).open("ab", buffering=0) as heard:
        for line in sys.stdin.buffer:
            heard.write(line)
            message = protocol.decode(line)
            if isinstance(message, protocol.Hello):
                refuse = behaviour == "refuse"
                say(
                    protocol.Refused(message=f"{message.csv_path}: no such folder")
                    if refuse
                    else protocol.Ready(lines=("the service is ready",))
                )
            elif isinstance(message, protocol.Steps):
                if behaviour == "garbage":
                    sys.stdout.buffer.write(b"what?\n")
                    sys.stdout.buffer.flush()
                limit = 1e-3 if behaviour == "limit" else None
                say(protocol.Apply(epoch=1, params=TRIED, incumbent=BEST, limit_us=limit))
                if behaviour == "die" and sum(r.epoch == 1 for r in message.records):
                    sys.exit(3)
                if behaviour == "done":
                    say(protocol.Done(epoch=2, params=BEST, certified=True, text="best found"))
            elif isinstance(message, protocol.Finish):
                say(protocol.Line(text="the logs are closed"))
                break


if __name__ == "__main__":
    main(*sys.argv[1:3])  # what follows are cores
