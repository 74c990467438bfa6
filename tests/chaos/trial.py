"""Runs one trial of chaos and says what was not as it has to be.

    python tests/chaos/trial.py SEED FAULT     as `make test-chaos` prints them

Every trial has two hosts of its own (tests/cluster/hosts.py); a job of one host runs on the first.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
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
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from chaos.plan import FAULTS, Plan, draw
from cluster.elastic import sockets
from cluster.hosts import Host, TwoHosts

HERE = Path(__file__).parent
START_LIMIT_S = ROWS_LIMIT_S = 60.0
END_LIMIT_S = 20.0
"""From the last rank's error, or the end of its work, to the end of the job and its processes."""
LOGS_BYTES = "2m"
SEEN = 'trap "" TERM; "$@"; code=$?; ls -A /dev/shm >"$0"; exit $code'
OF_OTHERS = ("sm_segment.", "vader_segment.", "full")
"""What begins names in /dev/shm that are Open MPI's (a killed rank's stay) or the job's own."""
MEMORY = "/memfd:hvd-autotune"
TABLES = "SELECT name FROM sqlite_master"
FINISHED = "SELECT COUNT(*) FROM trials"
HEAD = b"hierarchical_allreduce,"


@dataclass
class Outcome:
    """What came of a trial: ``wrong`` is empty where all was as it has to be."""

    plan: Plan
    ended: str = ""
    seconds: float = 0.0
    bound_s: float = 0.0
    load: float = 0.0
    told_s: dict[int, float] = field(default_factory=dict)
    rows_before: int = 0
    errors: dict[int, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    output: str = ""

    def describe(self) -> str:
        """Return one line: the plan, how it ended, what was wrong."""
        wrong = "".join(f"; WRONG: {each}" for each in self.wrong)
        return f"{self.plan.describe()}: {self.ended} after {self.seconds:.1f} s{wrong}"

    def as_dict(self) -> dict[str, Any]:
        """Return what is kept of it: times in seconds from the fault, and what they are held to."""
        return {
            "seed": self.plan.seed,
            "fault": self.plan.fault.name,
            "ranks": self.plan.ranks,
            "launcher": "mpirun" if self.plan.has_mpi else "without MPI",
            "ended": self.ended,
            "seconds": round(self.seconds, 1),
            "told_s": {rank: round(seconds, 1) for rank, seconds in sorted(self.told_s.items())},
            "bound_s": round(self.bound_s, 1),
            "load": round(self.load, 1),
            "trials_before": self.rows_before,
        }


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
        environ = {"OMP_NUM_THREADS": "1", "CHAOS_FOLDER": str(self.folder), **self.plan.environ}
        if "HOROVOD_AUTOTUNE" in environ:
            environ["HOROVOD_AUTOTUNE_LOG"] = str(self.logs / "log.csv")
        if self.plan.fault.name == "full shared memory":
            environ["CHAOS_FULL_SHM"] = "1"
        if self.plan.rows:
            environ["CHAOS_AFTER"] = "1"
        before, launch = self.hosts.without_mpi(self.plan.ranks), {}
        if self.plan.has_mpi:
            before = self.hosts.mpirun(self.plan.ranks, environ)
            launch = self.hosts.launch_variables()
        job = [sys.executable, str(HERE / "job.py"), str(self.folder), str(self.plan.seconds)]
        words = [*listed(self.folder, self.hosts.a), *before, *job]
        return self.hosts.start_on_a(words, **launch, **environ)

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
                    if match := re.search(rb"\0(?:OMPI_COMM_WORLD|HOROVOD)_RANK=(\d+)\0", text):
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
        """Return the finished trials of the tuner's log; it may be writing one more."""
        log = self.logs / "log.csv"
        text = log.read_text() if log.exists() else ""
        return [line for line in text.split("\n")[:-1] if line and line[0].isdigit()]

    def survivors(self) -> dict[int, str]:
        """Return {process: its words} of what the job has started and what still runs, anywhere."""
        own = f"CHAOS_FOLDER={self.folder}".encode()
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if own in (folder / "environ").read_bytes().split(b"\0"):
                    words = (folder / "cmdline").read_bytes()
                    found[int(folder.name)] = words.replace(b"\0", b" ").decode(errors="replace")
        for host in self.hosts.hosts:
            for number in self.hosts.processes(host):
                found.setdefault(number, f"a process of {host.name}")
        return found

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
        rows = self.plan.rows
        if rows and not self.wait(lambda: len(self.rows()) >= rows, ROWS_LIMIT_S * patience()):
            self.outcome.wrong.append(f"no {rows} trials before the fault: {self.rows()}")
        if self.plan.fault.name == "strangers" and self.plan.at_start:
            self.wait(lambda: self.ports(), START_LIMIT_S)
        else:
            self.wait(lambda: False, self.plan.delay_s)
        self.rows_before = self.rows()
        self.outcome.rows_before = len(self.rows_before)
        self.struck_at = time.monotonic()
        (self.folder / "struck").touch()
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
        try:
            places = _listening(process)
            found = [places.get(link, 0) for link in _links(process)]
        except OSError:  # it has ended meanwhile
            return []
        return [port for port in found if port >= 1 << 15]

    # ------------------------------------------------------------ the end

    def finish(self) -> Outcome:
        """Wait for the end and look at everything."""
        fault, outcome = self.plan.fault, self.outcome
        slow = patience()
        lasts_s = self.plan.lasts_s if fault.name == "stop and continue" else 0.0
        limit_s = (fault.within_s + self.plan.seconds + lasts_s + END_LIMIT_S) * slow
        outcome.load = os.getloadavg()[0]
        outcome.bound_s = fault.within_s * slow or limit_s
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
        for rank, text in outcome.errors.items():
            outcome.told_s[rank] = float(text.partition(" ")[0]) - self.struck_at
        self._reader.join(2)
        outcome.output = "".join(self._output)
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
            said, seconds = text.partition(" ")[2], self.outcome.told_s[rank]
            if fault.within_s and seconds > fault.within_s * slow:
                wrong.append(f"rank {rank} was told after {seconds:.1f} s: {said}")
            if not late and not self._is_named(rank, said):
                wrong.append(f"rank {rank} was told: {said}")
        others = [text.partition(" ")[2] for text in self.outcome.errors.values()]
        # Where the one is stopped by whom others are told, each of those finds it out by itself,
        # and mpirun may end them when the first one has; that one has said what is wrong.
        speaks = self.plan.victim == 0 or "HOROVOD_CONTROL_FANOUT" in self.plan.environ
        finds_out_alone = fault.name == "stop" and speaks
        needs_all = fault.name in ("stop", "cable down") and not right and not late
        fewest = 1 if finds_out_alone else sum(self.plan.ranks) - (fault.name == "stop")
        if needs_all and len(others) < fewest:
            wrong.append(f"only ranks {sorted(self.outcome.errors)} were told")
        # Until MPI is up in a rank mpirun alone can know of its end; of one that is killed while it
        # connects to mpirun, mpirun says nothing (horovodrun does).
        unknown = self.plan.has_mpi and self.plan.victim not in self.files("up")
        if fault.name == "kill" and not (right or late or others or unknown):
            # mpirun may end the others at once; then it says itself which one was killed.
            if not re.search(rf"rank {self.plan.victim}\b", self.outcome.output):
                wrong.append("neither a rank nor the launcher says which one was killed")

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
        wrong = self.outcome.wrong
        deadline = time.monotonic() + 5 * patience()
        while left := self.survivors():
            if time.monotonic() > deadline:
                wrong.append(f"processes are left: {left}")
                break
            time.sleep(0.1)
        for process in left:
            for link in Path(f"/proc/{process}/fd").glob("*"):
                with contextlib.suppress(OSError):
                    if (name := os.readlink(link)).startswith(MEMORY):
                        wrong.append(f"process {process} has {name}")
        for host in self.hosts.hosts:
            if open_sockets := sockets(host):
                wrong.append(f"sockets are left on {host.name}: {open_sockets}")
            seen = self.folder / f"shared-memory-{host.name}"
            names = seen.read_text().split() if seen.exists() else []
            if new := [name for name in names if not name.startswith(OF_OTHERS)]:
                wrong.append(f"in /dev/shm of {host.name} are left: {new}")

    def _check_logs(self) -> None:
        wrong, log = self.outcome.wrong, self.logs / "log.csv"
        after = self.rows()
        if after[: len(self.rows_before)] != self.rows_before:
            wrong.append(f"trials lost: {self.rows_before}, then {after}")
        text = log.read_bytes() if log.exists() else b""
        lines = text.split(b"\n") if text else []
        cells = [line.count(b",") for line in lines[:-1]]
        if lines and (lines[-1] or not lines[0].startswith(HEAD) or len(set(cells)) > 1):
            wrong.append(f"log.csv is torn: {lines}")
        if not (self.logs / "log.db").exists():
            return
        # Elsewhere: whoever reads it needs room beside it.
        for part in self.logs.glob("log.db*"):
            shutil.copy(part, self.folder)
        try:
            with contextlib.closing(sqlite3.connect(self.folder / "log.db")) as connection:
                answer = connection.execute("PRAGMA integrity_check").fetchone()[0]
                # A job may be ended between the file and its tables.
                begun = ("trials",) in connection.execute(TABLES).fetchall()
                kept = connection.execute(FINISHED).fetchone()[0] if begun else 0
        except sqlite3.Error as error:
            answer, kept = str(error), 0
        if answer != "ok":
            wrong.append(f"log.db: {answer}")
        # The last line of a run that is done repeats the setting of an earlier one.
        elif kept < len(shown := {row.rpartition(",")[0] for row in self.rows_before}):
            wrong.append(f"log.db has {kept} trials, log.csv had {len(shown)}")


def _listening(process: int) -> dict[str, int]:
    """Return {link of a socket: port} of those in a process's network that listen."""
    lines = Path(f"/proc/{process}/net/tcp").read_text().splitlines()[1:]
    entries = [line.split() for line in lines]
    return {f"socket:[{e[9]}]": int(e[1].rpartition(":")[2], 16) for e in entries if e[3] == "0A"}


def _links(process: int) -> list[str]:
    """Return what the descriptors of a process are."""
    links = []
    for link in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(OSError):
            links.append(os.readlink(link))
    return links


def listed(folder: Path, host: Host) -> list[str]:
    """Return the words before a command on ``host`` that leave a list of /dev/shm at its end."""
    return ["sh", "-c", SEEN, str(folder / f"shared-memory-{host.name}")]


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
        TwoHosts(around=lambda host: listed(Path(name), host)) as hosts,
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
