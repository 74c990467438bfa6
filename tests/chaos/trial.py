"""Runs one trial of chaos and says what was not as it has to be.

    python tests/chaos/trial.py SEED FAULT     as `make test-chaos` prints them

Every trial has two hosts of its own (tests/cluster/hosts.py); a job of one host runs on the first.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from chaos.plan import FAULTS, Plan, draw
from cluster.hosts import TwoHosts

HERE = Path(__file__).parent
START_LIMIT_S = 60.0
END_LIMIT_S = 20.0
"""From the last rank's error, or the end of its work, to the end of the job and its processes."""
LOGS_BYTES = "2m"
SEEN = 'trap "" TERM; "$@"; code=$?; ls /dev/shm >"$0"; exit $code'


@dataclass
class Outcome:
    """What came of a trial: ``wrong`` is empty where all was as it has to be."""

    plan: Plan
    ended: str = ""
    seconds: float = 0.0
    errors: dict[int, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    output: str = ""

    def describe(self) -> str:
        """Return one line: the plan, how it ended, what was wrong."""
        wrong = "".join(f"; WRONG: {each}" for each in self.wrong)
        return f"{self.plan.describe()}: {self.ended} after {self.seconds:.1f} s{wrong}"


def patience() -> float:
    """Return by how much everything takes longer here: processes per core, at least 1."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


class Trial:
    """One job and its fault."""

    def __init__(self, plan: Plan, hosts: TwoHosts, folder: Path) -> None:
        self.plan, self.hosts, self.folder = plan, hosts, folder
        self.logs = folder / "logs"
        self.outcome = Outcome(plan)
        self.rows_before: list[str] = []
        self.struck_at = 0.0
        self.was_ended = False  # mpirun, by us
        self.job = self._start()
        self._output: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _start(self) -> subprocess.Popen[str]:
        environ = {"OMP_NUM_THREADS": "1", **self.plan.environ}
        if "HOROVOD_AUTOTUNE" in environ:
            environ["HOROVOD_AUTOTUNE_LOG"] = str(self.logs / "log.csv")
        if self.plan.fault.name == "full shared memory":
            environ["CHAOS_FULL_SHM"] = "1"
        words = [*self.hosts.mpirun(self.plan.ranks, environ), sys.executable, HERE / "job.py"]
        words += [self.folder, self.plan.seconds]
        words = ["sh", "-c", SEEN, self.folder / "shared-memory", *words]
        return self.hosts.start_on_a(words, **self.hosts.launch_variables(), **environ)

    def _read(self) -> None:
        with contextlib.suppress(ValueError, OSError):
            for line in self.job.stderr or ():
                self._output.append(line)

    # ------------------------------------------------------------ what is there

    def processes(self) -> dict[int, int]:
        """Return {rank: process} of the ranks that run."""
        found = {}
        for host in self.hosts.hosts:
            for number in self.hosts.processes(host):
                with contextlib.suppress(OSError):
                    words = Path(f"/proc/{number}/cmdline").read_bytes().split(b"\0")
                    if len(words) < 2 or not words[1].endswith(b"chaos/job.py"):
                        continue
                    text = Path(f"/proc/{number}/environ").read_bytes()
                    if match := re.search(rb"\0OMPI_COMM_WORLD_RANK=(\d+)\0", text):
                        found[int(match[1])] = number
        return found

    def files(self, name: str) -> dict[int, str]:
        """Return {rank: text} of the files that ranks left."""
        paths = (p for p in self.folder.glob(f"{name}-*") if p.suffix != ".part")
        return {int(path.name.rpartition("-")[2]): path.read_text() for path in paths}

    def wait(self, true: Callable[[], object], limit_s: float) -> bool:
        """Return whether ``true()`` came to be true before the job's end and the limit."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            if true():
                return True
            if self.job.poll() is not None:
                return bool(true())
            time.sleep(0.02)
        return False

    def rows(self) -> list[str]:
        """Return the whole rows of the tuner's log."""
        log = self.logs / "log.csv"
        text = log.read_text() if log.exists() else ""
        return [line for line in text.split("\n")[:-1] if line and line[0].isdigit()]

    # ------------------------------------------------------------ the fault

    def strike(self) -> None:
        """Wait for the moment and do what the plan says."""
        size = sum(self.plan.ranks)
        name = "up" if not self.plan.at_start else "pid"
        begun = (
            (lambda: len(self.files("up")) == size)
            if name == "up"
            else (lambda: len(self.processes()) == size)
        )
        if not self.wait(begun, START_LIMIT_S * patience()):
            self.outcome.wrong.append("the job did not begin")
            return
        if self.plan.fault.name == "strangers" and self.plan.at_start:
            self.wait(lambda: self.ports(), START_LIMIT_S)
        else:
            self.wait(lambda: False, self.plan.delay_s)
        self.rows_before = self.rows()
        self.struck_at = time.monotonic()
        victim = self.processes().get(self.plan.victim)
        with contextlib.suppress(ProcessLookupError):
            getattr(self, "_" + self.plan.fault.name.replace(" ", "_"))(victim)

    def _kill(self, victim: int | None) -> None:
        if victim:
            os.kill(victim, signal.SIGKILL)

    def _stop(self, victim: int | None) -> None:
        if victim:
            os.kill(victim, signal.SIGSTOP)

    def _stop_and_continue(self, victim: int | None) -> None:
        if not victim:
            return
        os.kill(victim, signal.SIGSTOP)
        self.wait(lambda: False, self.plan.lasts_s)
        os.kill(victim, signal.SIGCONT)

    def _cable_down(self, victim: int | None) -> None:
        self.hosts.set_cable(up=False)

    def _cable_slow(self, victim: int | None) -> None:
        self.hosts.set_rate(self.plan.rate_mbit)

    def _full_shared_memory(self, victim: int | None) -> None:
        pass  # the job itself has done it

    def _no_descriptors(self, victim: int | None) -> None:
        if victim:
            used = len(os.listdir(f"/proc/{victim}/fd"))
            resource.prlimit(victim, resource.RLIMIT_NOFILE, (used, used))

    def _memory_limit(self, victim: int | None) -> None:
        if victim:
            pages = int(Path(f"/proc/{victim}/statm").read_text().split()[0])
            most = pages * resource.getpagesize() + (1 << 20)
            resource.prlimit(victim, resource.RLIMIT_AS, (most, most))

    def _disk_full(self, victim: int | None) -> None:
        with open(self.logs / "full", "wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))

    def _strangers(self, victim: int | None) -> None:
        enter = ["ip", "netns", "exec", self.hosts.a.namespace, sys.executable, "-I"]
        words = [*enter, str(HERE / "stranger.py"), "127.0.0.1", *map(str, self.ports())]
        subprocess.run(words, timeout=120)

    def ports(self) -> list[int]:
        """Return the ports at which rank 0's engine listens; those of MPI are below."""
        process = self.processes().get(0)
        if not process:
            return []
        lines = Path(f"/proc/{process}/net/tcp").read_text().splitlines()[1:]
        places = {}
        for line in lines:
            words = line.split()
            if words[3] == "0A":
                places[f"socket:[{words[9]}]"] = int(words[1].rpartition(":")[2], 16)
        found = []
        for link in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.append(places.get(os.readlink(link), 0))
        return [port for port in found if port >= 1 << 15]

    # ------------------------------------------------------------ the end

    def finish(self) -> Outcome:
        """Wait for the end and look at everything."""
        fault, outcome = self.plan.fault, self.outcome
        slow = patience()
        lasts_s = self.plan.lasts_s if fault.name == "stop and continue" else 0.0
        limit_s = (fault.within_s + self.plan.seconds + lasts_s + END_LIMIT_S) * slow
        cut = fault.name == "cable down" and self.struck_at > 0
        self.wait(lambda: cut and not self.processes(), limit_s)
        if cut and self.job.poll() is None and not self.processes():
            self.hosts.set_cable(up=True)  # mpirun waits for its daemon on the other host
            self.wait(lambda: False, END_LIMIT_S)
            self.was_ended = self.job.poll() is None
            if self.was_ended:
                self.hosts.close()
        outcome.seconds = time.monotonic() - self.struck_at if self.struck_at else 0.0
        outcome.errors = self.files("error")
        if self.job.poll() is None:
            outcome.ended = "no end"
            outcome.wrong.append(f"no end within {limit_s:.0f} s")
        else:
            right = self.job.returncode == 0
            outcome.ended = "right" if right else f"error (exit code {self.job.returncode})"
            self._check_end(right, slow)
            if not self.was_ended:
                self._check_leftovers()
        self._check_logs()
        self._reader.join(2)
        outcome.output = "".join(self._output)
        return outcome

    def _check_end(self, right: bool, slow: float) -> None:
        fault, wrong = self.plan.fault, self.outcome.wrong
        done = self.files("done")
        if right and len(done) != sum(self.plan.ranks):
            wrong.append(f"exit code 0, but only ranks {sorted(done)} are done")
        late = not right and len(done) > 0  # it struck when the job was nearly over
        if fault.ends == "right" and not right:
            wrong.append("expected a right end")
        if fault.ends == "error" and right and self.outcome.seconds > self.plan.seconds:
            wrong.append("expected an error")
        for rank, text in self.outcome.errors.items():
            when, _, said = text.partition(" ")
            if fault.within_s and float(when) - self.struck_at > fault.within_s * slow:
                seconds = float(when) - self.struck_at
                wrong.append(f"rank {rank} was told after {seconds:.1f} s: {said}")
            if not late and not self._is_named(rank, said):
                wrong.append(f"rank {rank} was told: {said}")
        others = [text.partition(" ")[2] for text in self.outcome.errors.values()]
        # Where rank 0 is stopped each of the others finds it out by itself, and mpirun may end them
        # when the first one has; that one has said what is wrong.
        finds_out_alone = fault.name == "stop" and self.plan.victim == 0
        needs_all = fault.name in ("stop", "cable down") and not right and not late
        fewest = 1 if finds_out_alone else sum(self.plan.ranks) - (fault.name == "stop")
        if needs_all and len(others) < fewest:
            wrong.append(f"only ranks {sorted(self.outcome.errors)} were told")

    def _is_named(self, rank: int, text: str) -> bool:
        plan = self.plan
        if plan.fault.named == "rank":
            first = re.search(r"rank ([\d, ]+)", text[text.find("for rank") + 1 :] or text)
            numbers = re.findall(r"\d+", first[1]) if first else []
            return str(plan.victim) in numbers or rank == plan.victim
        if plan.fault.named == "host":
            return "host-b" in text or "host-a" in text
        return True

    def _check_leftovers(self) -> None:
        deadline = time.monotonic() + 5 * patience()
        while any(left := [self.hosts.processes(host) for host in self.hosts.hosts]):
            if time.monotonic() > deadline:
                names = [Path(f"/proc/{n}/cmdline").read_bytes() for pids in left for n in pids]
                self.outcome.wrong.append(f"processes are left: {names}")
                break
            time.sleep(0.1)
        seen = self.folder / "shared-memory"
        segments = seen.read_text().split() if seen.exists() else []
        if left := [name for name in segments if name.startswith("hvd-autotune")]:
            self.outcome.wrong.append(f"segments are left: {left}")

    def _check_logs(self) -> None:
        after = self.rows()
        if after[: len(self.rows_before)] != self.rows_before:
            self.outcome.wrong.append(f"trials lost: {self.rows_before}, then {after}")
        database = self.logs / "log.db"
        if database.exists() and self.plan.fault.name != "disk full":
            with contextlib.closing(sqlite3.connect(database)) as connection:
                answer = connection.execute("PRAGMA integrity_check").fetchone()[0]
            if answer != "ok":
                self.outcome.wrong.append(f"log.db: {answer}")


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Mount a file system of ``LOGS_BYTES`` at ``folder``, for as long as this lives."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={LOGS_BYTES}", "tmpfs", str(folder)]
    subprocess.run(mount, check=True, timeout=20)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], timeout=20)


def run(plan: Plan) -> Outcome:
    """Run one trial."""
    with (
        tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True) as name,
        small_disk(Path(name) / "logs"),
        TwoHosts() as hosts,
    ):
        trial = Trial(plan, hosts, Path(name))
        trial.strike()
        return trial.finish()


def main(seed: int, name: str) -> int:
    """Run the trial of ``seed`` and print all that it said."""
    fault = next(each for each in FAULTS if each.name == name)
    outcome = run(draw(seed, fault))
    print(outcome.output)
    for rank, text in sorted(outcome.errors.items()):
        print(f"rank {rank}: {text}")
    print(outcome.describe())
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2]))
