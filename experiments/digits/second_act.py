"""The demo's second act: the same script on two hosts with a slow link between them.

    python experiments/digits/second_act.py --output demo-output/two-hosts

The hosts are network namespaces of this machine, made by root or in a user namespace; where neither
is allowed, one sentence says why, and the exit code is 0.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from act import RANK_VARIABLES, Act, Words

from cluster.hosts import HostsError, TwoHosts, namespace_words
from horovod.runner import mpirun, probe

NETWORK = ("--embedding", "64", "--batch-size", "8", "--momentum", "0", "--lr", "0.05")


def second_act(hosts: TwoHosts, options: argparse.Namespace) -> Act:
    """Return the job on ``hosts``."""

    def start(words: Words, environ: dict[str, str], output: int | None) -> subprocess.Popen[str]:
        environ = {**hosts.launch_variables(), **RANK_VARIABLES, **environ}
        return hosts.start_on_a(words, output=output, **environ)

    ranks = options.ranks
    return Act(
        start=start,
        launch=("-np", str(2 * ranks), "-H", hosts.places((ranks, ranks))),
        train=NETWORK,
        output=options.output,
        epochs=options.epochs,
        timed_epochs=options.timed_epochs,
        pairs=options.pairs,
        place=f"2 hosts x {ranks} ranks, {options.rate_mbit:g} Mbit/s",
        deadline=time.monotonic() + options.seconds,
    )


def introduce(hosts: TwoHosts, options: argparse.Namespace) -> None:
    """Say where the job runs."""
    a, b = hosts.hosts
    print(f"\n=== 2. The same script on two hosts that are {options.rate_mbit:g} Mbit/s apart")
    print(
        f"{a.name} and {b.name} are network namespaces of this machine. Commands are typed on "
        f"{a.name}; the ranks\nof {b.name} are started by a program that enters it "
        "(PRTE_MCA_plm_ssh_agent), elsewhere ssh does that.\n"
        "The network looks up an embedding for each pixel. Its gradient is sparse: every rank "
        "gathers the rows of\nall others, 0.14 MB from each, and waits for them.",
        flush=True,
    )


def unsuitable_mpi() -> str:
    """Return why the MPI of this installation does not start ranks on these hosts, or ""."""
    program = probe.find_mpirun(probe.engine_build().library)
    family = None if program is None else mpirun.ask_family(program)
    return "" if family is mpirun.Family.OPEN_MPI_5 else f"it needs Open MPI 5, this is {family}"


def take_signals() -> None:
    """Have Ctrl-C and SIGTERM, once, end this process through its ``finally`` clauses."""

    def leave(number: int, frame: FrameType | None) -> None:
        for other in (signal.SIGINT, signal.SIGTERM):
            signal.signal(other, signal.SIG_IGN)
        sys.exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)


def play(options: argparse.Namespace) -> None:
    """Make the hosts and run the act on them.

    Raises:
        HostsError: The hosts cannot be made.
    """
    if words := namespace_words():
        os.execvp(words[0], [*words, sys.executable, *sys.argv])
    if reason := unsuitable_mpi():
        raise HostsError(reason)
    with TwoHosts(rate_mbit=options.rate_mbit) as hosts:
        hosts.check()
        act = second_act(hosts, options)
        introduce(hosts, options)
        if options.answer:
            act.time_answer(options.answer)
            return
        act.train_untuned()
        act.play()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("demo-output/two-hosts"))
    parser.add_argument("--answer", type=Path, help="log or saved result to time; nothing is tuned")
    parser.add_argument("--ranks", type=int, default=2, help="ranks on each host")
    parser.add_argument("--rate-mbit", type=float, default=200, help="speed of the link")
    parser.add_argument("--epochs", type=int, default=34, help="epochs of the tuned job")
    parser.add_argument("--timed-epochs", type=int, default=2, help="epochs of the timed jobs")
    parser.add_argument("--pairs", type=int, default=4, help="pairs of timed jobs")
    parser.add_argument("--seconds", type=float, default=150, help="time for everything")
    options = parser.parse_args()
    take_signals()
    options.output.mkdir(parents=True, exist_ok=True)
    try:
        play(options)
    except (HostsError, mpirun.UnknownMpiError) as error:
        print(f"\n=== 2. Two hosts: left out, {error}.")


if __name__ == "__main__":
    main()
