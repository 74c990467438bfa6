"""Runs an elastic job to which random things happen: ranks are killed, hosts come and go.

    python tests/chaos/elastic.py SEED EVENTS     prints what happened, and what was wrong

An even seed has one host, an odd one two (tests/cluster/hosts.py). After each event the job has to
get on; at the end its weights are those of a training without interruption, and nothing is left.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from chaos.trial import patience
from cluster.elastic import OnHosts, sockets
from cluster.hosts import TwoHosts
from e2e.elastic.job import STEPS_PER_COMMIT
from e2e.elastic.running import Running

GET_ON_SECONDS = 60.0
"""What a job has to begin a round and to commit twice in it, on an idle machine."""
MOST_SLOTS = 3
KINDS = ("kill", "kill", "kill rank 0", "one more slot", "one slot less")


@dataclass(frozen=True, kw_only=True)
class Event:
    """One thing that happens.

    Attributes:
        kind: One of ``KINDS``.
        choice: Which rank or host, from 0 to 1.
        waits: The job is back at its full size before the next event; else it only gets on.
        pause_s: Time after that.
    """

    kind: str
    choice: float
    waits: bool
    pause_s: float


def draw(seed: int, count: int) -> list[Event]:
    """Return the events of ``seed``."""
    chance = random.Random(seed)
    return [
        Event(
            kind=chance.choice(KINDS),
            choice=chance.random(),
            waits=chance.random() < 0.5,
            pause_s=chance.uniform(0.0, 1.0),
        )
        for _ in range(count)
    ]


@dataclass
class Outcome:
    """What came of it: ``wrong`` is empty where all was as it has to be.

    Attributes:
        seconds: From each kill to the first step afterwards.
    """

    seed: int
    happened: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    wrong: str = ""
    output: str = ""

    def describe(self) -> str:
        """Return a line about it."""
        took = f", {max(self.seconds):.1f} s at most from a kill to the next step"
        text = f"seed {self.seed}: {len(self.happened)} events{took if self.seconds else ''}"
        return f"{text}; WRONG after {self.happened[-3:]}: {self.wrong}" if self.wrong else text


class Chaos:
    """One job and its hosts."""

    def __init__(self, hosts: TwoHosts, folder: Path, two: bool) -> None:
        self.slots = {hosts.a.name: 2, hosts.b.name: 1} if two else {hosts.a.name: 3}
        self.hosts = hosts
        self.place = OnHosts(hosts, folder)
        flags = ["-np", "2", "--min-np", "1"]
        self.job = Running(
            self.place,
            flags,
            sleep_s=0.02,
            hosts=self._text(),
            pid_of=self.place.pid_of,
            kind="torch" if two else "arrays",
        )
        self._get_on(whole=True)

    def _text(self) -> str:
        return ",".join(f"{name}:{slots}" for name, slots in self.slots.items())

    def members(self) -> list[dict[str, Any]]:
        """Return what the ranks of the newest round have said when it began."""
        lines = self.job.lines("round")
        newest = max((line["round"] for line in lines), default=0)
        return [line for line in lines if line["round"] == newest]

    def happen(self, event: Event, outcome: Outcome) -> None:
        """Let ``event`` happen and the job get on."""
        began, was = time.time(), self.members()[0]["round"]
        living = [line for line in self.members() if self.place.pid_of(line)]
        if event.kind.startswith("kill"):
            if len(living) < 2:  # nobody else has the state
                return
            victim = living[int(event.choice * len(living))]
            if event.kind == "kill rank 0":
                victim = next((line for line in living if line["rank"] == 0), victim)
            outcome.happened.append(f"kill rank {victim['rank']} of {len(living)}")
            os.kill(self.place.pid_of(victim), signal.SIGKILL)
        else:
            change = 1 if event.kind == "one more slot" else -1
            name = list(self.slots)[int(event.choice * len(self.slots))]
            slots = self.slots[name] + change
            if not 1 <= slots <= MOST_SLOTS or sum(self.slots.values()) + change < 2:
                return
            self.slots[name] = slots
            outcome.happened.append(f"{name} has {slots} slots")
            self.job.set_hosts(self._text())
        self._get_on(event.waits, was if event.kind.startswith("kill") else was - 1)
        if event.kind.startswith("kill"):
            first = next(line for line in self.job.lines("step") if line["round"] > was)
            outcome.seconds.append(first["time"] - began)
        time.sleep(event.pause_s)

    def _get_on(self, whole: bool, after_round: int = 0) -> None:
        """Wait for two commits in a round after ``after_round``; ``whole``: in one of all slots."""
        deadline = time.monotonic() + GET_ON_SECONDS * patience()
        while not self._has_got_on(whole, after_round):
            assert self.job.process.poll() is None, "the job has ended"
            assert time.monotonic() < deadline, "it does not get on"
            time.sleep(0.05)

    def _has_got_on(self, whole: bool, after_round: int) -> bool:
        members = self.members()
        if not members or members[0]["round"] <= after_round:
            return False
        if whole and members[0]["size"] != sum(self.slots.values()):
            return False
        newest = members[0]["round"]
        steps = [line for line in self.job.lines("step") if line["round"] == newest]
        return len(steps) > 2 * STEPS_PER_COMMIT and len(members) == members[0]["size"]

    def finish(self, outcome: Outcome) -> None:
        """End the job and look at what it leaves."""
        self._get_on(whole=True)
        size = sum(self.slots.values())
        self.job.stop()
        code, outcome.output = self.job.result()
        assert code == 0, f"exit code {code}"
        self.job.check_weights(size)
        steps = self.job.lines("step")
        losses = {line["step"]: line["loss"] for line in steps}
        other = [line for line in steps if abs(line["loss"] - losses[line["step"]]) > 1e-12]
        assert not other, f"another loss in the same step: {other}"
        left = [each for host in self.hosts.hosts for each in sockets(host)]
        assert not left, f"sockets are left: {left}"


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def run(seed: int, count: int) -> Outcome:
    """Run the job of ``seed`` with ``count`` events."""
    outcome = Outcome(seed)
    with _folder() as folder, TwoHosts() as hosts:
        chaos = Chaos(hosts, folder, two=seed % 2 == 1)
        try:
            for event in draw(seed, count):
                chaos.happen(event, outcome)
            chaos.finish(outcome)
        except AssertionError as error:
            outcome.wrong = str(error) or repr(error)
            if not outcome.output:
                chaos.job.process.kill()
                hosts.close()
                outcome.output = chaos.job.process.communicate(timeout=30)[1]
    return outcome


if __name__ == "__main__":
    found = run(int(sys.argv[1]), int(sys.argv[2]))
    print(found.output)
    print("\n".join(found.happened))
    print(found.describe())
    sys.exit(1 if found.wrong else 0)
