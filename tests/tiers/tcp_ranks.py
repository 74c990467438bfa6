"""Starts the ranks of a job without MPI, as ``horovodrun --gloo`` does, without its supervision.

    python tests/tiers/tcp_ranks.py -n 4 PROGRAM ARGUMENTS...
    python tests/tiers/tcp_ranks.py --hosts host-a:2,host-b:2 --agent AGENT --address 10.77.0.1 ...

The meeting point is in this process. With ``--hosts`` a rank of another than the first host is
started by ``AGENT HOST COMMAND``, which passes no variables on. The first rank that ends with
another code than 0, or by a signal, is named and ends the job after a moment; its code is ours.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from horovod.common.meeting import MeetingPoint

GRACE_SECONDS = 10.0
"""How long the others may take to notice that a rank has failed, and to say so."""
KEPT = ("PATH", "HOME", "LD_PRELOAD")


def rank_environment(rank: int, places: Sequence[str], address: str, port: int) -> dict[str, str]:
    """Return the variables of ``rank``, whose host is ``places[rank]``."""
    host = places[rank]
    hosts = list(dict.fromkeys(places))
    here = [each for each, place in enumerate(places) if place == host]
    return {
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(len(places)),
        "HOROVOD_LOCAL_RANK": str(here.index(rank)),
        "HOROVOD_LOCAL_SIZE": str(len(here)),
        "HOROVOD_CROSS_RANK": str(hosts.index(host)),
        "HOROVOD_CROSS_SIZE": str(len(hosts)),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
    }


def run(places: Sequence[str], words: Sequence[str], agent: str, address: str) -> int:
    """Run ``words`` as the ranks on ``places``; return the job's exit code."""
    key = os.environ.get("HOROVOD_SECRET_KEY") or secrets.token_hex(32)
    point = MeetingPoint(len(places), key)
    ranks: dict[str, subprocess.Popen[bytes]] = {}
    elsewhere: dict[str, list[tuple[int, str]]] = {}
    for rank, host in enumerate(places):
        own = rank_environment(rank, places, address, point.port) | {"HOROVOD_SECRET_KEY": key}
        if host == places[0]:
            ranks[f"rank {rank}"] = subprocess.Popen(words, env={**os.environ, **own})
            continue
        kept = {name: value for name, value in os.environ.items() if name not in KEPT} | own
        settings = [f"{name}={value}" for name, value in sorted(kept.items())]
        elsewhere.setdefault(host, []).append((rank, shlex.join(["env", *settings, *words])))
    for host, commands in elsewhere.items():
        # Together: ranks of one host see each other's processes.
        started = "".join(f'{command} & all="$all {rank}:$!"\n' for rank, command in commands)
        ended = '{ code=$?; echo "rank ${each%:*} has ended: $code" >&2; exit $code; }'
        script = f"{started} for each in $all; do wait ${{each#*:}} || {ended}; done"
        ranks[host] = subprocess.Popen([agent, host, script])
    try:
        return _wait(ranks)
    finally:
        for process in ranks.values():
            if process.poll() is None:
                process.kill()
            process.wait()
        point.close()


def _wait(ranks: Mapping[str, subprocess.Popen[bytes]]) -> int:
    """Return the first code other than 0 when all have ended, or some time after it was there."""
    code, until = 0, None
    while until is None or time.monotonic() < until:
        ended = {name: process.poll() for name, process in ranks.items()}
        bad = {name: code for name, code in ended.items() if code}
        if bad and until is None:
            until, code = time.monotonic() + GRACE_SECONDS, next(iter(bad.values()))
            print(*(f"{name} has ended: {each}" for name, each in bad.items()), file=sys.stderr)
        if None not in ended.values():
            break
        time.sleep(0.02)
    return 128 - code if code < 0 else code


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=1)
    parser.add_argument("--hosts", default="")
    parser.add_argument("--agent", default="")
    parser.add_argument("--address", default="127.0.0.1")
    parser.add_argument("words", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    places = [
        host
        for host, _, count in (each.partition(":") for each in given.hosts.split(",") if each)
        for _ in range(int(count))
    ]
    # Who ends us ends the ranks.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return run(places or ["localhost"] * given.n, given.words, given.agent, given.address)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
