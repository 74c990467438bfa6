"""Runs an elastic job: ``python -m horovod.runner.elastic.driver PLAN COMMAND ...``.

It stands in ``starter``'s place under ``supervise``: a child of the launcher, whose output and
signals it shares. Per host it keeps one ``host_process``, on others by ssh, and with every worker
it talks at its ``desk``. Threads only put what they hear into one queue; what is to be done is
decided by ``job`` and done here, in one thread. The key of the job goes to workers in their
environment, to other hosts over the standard input of ssh, and is on no command line.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import queue
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from horovod.common import interfaces, launched, rounds, secret
from horovod.common.meeting import MeetingPoint
from horovod.runner.elastic.actions import (
    Action,
    Dismiss,
    End,
    Lose,
    Say,
    Settle,
    Start,
    Stop,
    Tell,
)
from horovod.runner.elastic.desk import Desk
from horovod.runner.elastic.discovery import Discovery
from horovod.runner.elastic.job import ElasticJob
from horovod.runner.elastic.options import Elastic
from horovod.runner.mpirun import is_here, passed_variables
from horovod.runner.placing import THIS_HOST, HostRanks
from horovod.runner.rank_process import encode_record
from horovod.runner.starter import ENDING, WAKING, Host, host_command
from horovod.runner.supervise import write_all

CHECK_SECONDS = 0.25
GRACE_SECONDS = 120.0
"""What workers have after a signal, e.g. to commit, before they are killed."""
DISMISSED_SECONDS = 30.0
"""What a worker has to end when the job goes on without it."""
LAST_SECONDS = 5.0
"""What others have to end when the job has ended well."""
FAILURE_SECONDS = 5.0
RECORD_SECONDS = 10.0
"""So long a closed line waits for the word of how its process has ended."""
LOST_SECONDS = 5.0
SAME_SIGNAL_SECONDS = 1.0
"""A signal that comes again so soon is the same one."""
CONNECT = ("-o", "ConnectTimeout=10")
NUMBERED_AS_FOR = 100
"""Folders of ``--output-filename`` are numbered as for so many workers."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to run; it travels as JSON, and holds nothing that is secret.

    Attributes:
        elastic: What the job is to be like.
        options: Of ``rank_process``, for all workers.
        interfaces: Network interfaces to use, in order of preference; empty: any.
        ssh: Words between ``ssh`` and the host.
    """

    elastic: Elastic
    options: Mapping[str, Any]
    interfaces: Sequence[str] = ()
    ssh: Sequence[str] = ()

    def encode(self) -> str:
        """Return the plan as text."""
        fields = {**dataclasses.asdict(self), "elastic": self.elastic.encode()}
        return json.dumps(fields)


def decode(text: str) -> Plan:
    """Return the plan that ``Plan.encode`` wrote."""
    fields = json.loads(text)
    return Plan(elastic=Elastic.decode(fields.pop("elastic")), **fields)


class Driver:
    """The process that runs an elastic job.

    Args:
        plan: What to run.
        command: Program and arguments of every worker.
        environ: Of this process.

    Raises:
        OSError: It cannot listen.
    """

    def __init__(self, plan: Plan, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self._plan, self._command, self._environ = plan, command, environ
        self._parent = os.getppid()
        self._key = environ.get(secret.ENV, "").strip() or secrets.token_hex(32)
        self._heard: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        wanted = plan.elastic
        is_local = not wanted.script and all(_is_here(name) for name in wanted.hosts)
        self._listen_at = "127.0.0.1" if is_local else ""
        self._desk = Desk(self._key, self._listen_at, self._hear, self._hear_end)
        self._meeting: MeetingPoint | None = None
        self._job = ElasticJob(wanted, time.monotonic())
        self._hosts: dict[str, Host] = {}
        self._host_of: dict[int, str] = {}
        self._living: set[int] = set()
        self._silent: dict[int, float] = {}  # their lines have ended, at that time
        self._end: End | None = None
        self._kill_at = self._abandon_at = math.inf
        self._signal, self._signal_at = 0, -math.inf
        self._codes: set[int] = set()  # of workers that have ended since the signal

    # ---- what other threads hear -----------------------------------------------------------------

    def note(self, record: Mapping[str, Any]) -> bool:
        """Take note of a record of a ``rank_process``; the launcher gets none of them."""
        if "worker" in record and "code" in record:
            self._later(lambda: self._ended(int(record["worker"]), record))
        return False

    def _hear(self, worker: int, content: Mapping[str, Any]) -> None:
        self._later(lambda: self._take(worker, content))

    def _hear_end(self, worker: int, why: str) -> None:
        self._later(lambda: self._line_ended(worker, why))

    def _later(self, act: Callable[[], object]) -> None:
        self._heard.put(act)
        os.kill(os.getpid(), signal.SIGCHLD)  # the loop below looks at once

    # ---- the loop --------------------------------------------------------------------------------

    def run(self) -> int:
        """Run the job to its end and return its exit code."""
        wanted = self._plan.elastic
        if wanted.script:
            found = self._found_later
            Discovery(wanted.script, wanted.slots, found, _say).start()
        else:
            self._found_later(wanted.hosts)
        while not self._is_through():
            info = signal.sigtimedwait(WAKING, CHECK_SECONDS)
            if info is not None and info.si_signo != signal.SIGCHLD:
                self._take_signal(info.si_signo)
            with contextlib.suppress(queue.Empty):
                while True:
                    self._heard.get_nowait()()
            self._note_silent()
            self._reap_hosts()
            self._job.tick(time.monotonic())
            for action in self._job.take_actions():
                self._do(action)
            if time.monotonic() > self._kill_at:
                self._end_hosts()
            if time.monotonic() > self._abandon_at:
                for host in self._hosts.values():
                    host.process.kill()
        return self._conclude()

    def _is_through(self) -> bool:
        is_over = self._end is not None or self._signal
        return bool(is_over) and not self._living

    def _conclude(self) -> int:
        self._end_hosts()
        deadline = time.monotonic() + LOST_SECONDS
        for host in self._hosts.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                host.process.wait(max(0.1, deadline - time.monotonic()))
            host.process.kill()
            host.drain(deadline)
        if self._end is None or self._signal:
            said = {code for code in self._codes if code > 0}
            return said.pop() if len(said) == 1 else 128 + self._signal
        if self._end.failure is not None:
            names = ("rank", "host", "code", "told", "tail")
            record = {name: self._end.failure.get(name) for name in names}
            write_all(2, encode_record(record))
        return self._end.code

    def _take_signal(self, number: int) -> None:
        if number not in ENDING:
            self._order({"signal": number})
            return
        if time.monotonic() - self._signal_at < SAME_SIGNAL_SECONDS:
            return  # to the group of processes, and passed on by the launcher
        self._signal_at = time.monotonic()
        is_orphan = os.getppid() != self._parent  # the launcher was killed, and nobody waits
        seconds = 0.0 if self._signal else FAILURE_SECONDS if is_orphan else GRACE_SECONDS
        if not self._signal and not is_orphan and self._living:
            _say(
                f"told to end ({signal.Signals(number).name}): the ranks have {GRACE_SECONDS:g} s, "
                "e.g. until their next commit; a second signal ends them at once"
            )
        self._signal = self._signal or number
        self._job.is_over = True
        self._order({"signal": int(signal.SIGTERM), "seconds": seconds})
        self._kill_at = min(self._kill_at, time.monotonic() + seconds + LOST_SECONDS)

    # ---- what the job decides --------------------------------------------------------------------

    def _do(self, action: Action) -> None:
        match action:
            case Start():
                self._start(action)
            case Stop():
                self._stop(action.worker, action.seconds)
            case Settle():
                self._settle(action)
            case Dismiss():
                self._desk.say(action.worker, {"out": action.why})
                self._stop(action.worker, DISMISSED_SECONDS, number=0)
            case Lose():
                if self._meeting is not None:
                    self._meeting.refuse_all(action.why)
                for worker in action.workers:
                    self._desk.say(worker, {"lost": action.number, "why": action.why})
            case Tell():
                for worker in action.workers:
                    self._desk.say(worker, {"hosts": action.kind, "time": time.time()})
            case Say():
                _say(action.text)
            case End():
                self._end_job(action)

    def _start(self, action: Start) -> None:
        options = {
            **self._plan.options,
            "size": NUMBERED_AS_FOR,
            "place": dict(action.place),
            "worker": action.worker,
            "environ": {
                rounds.ELASTIC: "1",
                rounds.WORKER: str(action.worker),
                rounds.SLOT: str(action.slot),
                "HOROVOD_HOSTNAME": action.host.rpartition("@")[2],
            },
        }
        self._host_of[action.worker] = action.host
        self._living.add(action.worker)
        try:
            self._host(action.host).tell({"start": options})
        except OSError as error:
            record = {"code": 1, "host": action.host, "tail": [str(error)], "rank": 0}
            self._later(lambda: self._ended(action.worker, record))

    def _host(self, name: str) -> Host:
        """Return what runs the workers of a host; start it where it does not run."""
        host = self._hosts.get(name)
        if host is not None and host.process.poll() is None:
            return host
        here = _is_here(name)
        place = HostRanks(name=THIS_HOST if here else name, ranks=())
        words = host_command(place.name, [*CONNECT, *self._plan.ssh])
        self._hosts[name] = Host(place, words, self._first(name, here), self)
        return self._hosts[name]

    def _first(self, name: str, here: bool) -> dict[str, Any]:
        """Return the first line that a ``host_process`` gets."""
        plan, environ = self._plan, self._environ
        passed = {} if here else {each: environ[each] for each in passed_variables(environ)}
        address = "127.0.0.1" if here else interfaces.address_towards(name, plan.interfaces)
        own = {
            launched.CONTROLLER: "gloo",
            launched.MEETING_HOST: address,
            launched.MEETING_PORT: str(self._desk.port),
            secret.ENV: self._key,
        }
        if plan.interfaces:
            own["HOROVOD_GLOO_IFACE"] = ",".join(plan.interfaces)
        return {
            "command": list(self._command),
            "environ": {**passed, **own},
            "folder": os.getcwd(),
            "ranks": [],
            "input": False,
            "stays": True,
        }

    def _stop(self, worker: int, seconds: float, number: int = signal.SIGTERM) -> None:
        host = self._hosts.get(self._host_of.get(worker, ""))
        if host is not None and worker in self._living:
            host.tell({"signal": int(number), "seconds": seconds, "worker": worker})

    def _settle(self, action: Settle) -> None:
        if self._meeting is not None:
            self._meeting.close()
        key = rounds.round_key(self._key, action.number)
        self._meeting = MeetingPoint(len(action.workers), key, host=self._listen_at)
        for worker, place in zip(action.workers, action.places, strict=True):
            answer = {"round": action.number, "place": dict(place), "fresh": action.is_fresh}
            self._desk.say(worker, {**answer, "port": self._meeting.port})

    def _end_job(self, action: End) -> None:
        self._end = action
        if action.text:
            _say(action.text)
        well = action.code == 0
        seconds = LAST_SECONDS if well else FAILURE_SECONDS
        number = 0 if well else signal.SIGTERM
        self._order({"signal": int(number), "seconds": seconds})
        self._kill_at = min(self._kill_at, time.monotonic() + seconds + LOST_SECONDS)

    # ---- what has happened -----------------------------------------------------------------------

    def _take(self, worker: int, content: Mapping[str, Any]) -> None:
        """Take what a worker has said at the desk."""
        now = time.monotonic()
        if "ask" in content:
            self._job.asked(worker, str(content.get("why", "")), now)
        elif "runs" in content:
            self._job.runs(worker, int(content["runs"]), now)
        elif "has" in content:
            self._job.has_state(worker, int(content["has"]))
        elif "commit" in content:
            self._job.committed(worker, int(content["commit"]))

    def _line_ended(self, worker: int, why: str) -> None:
        """Wait a moment for the end of the process, which says more; not for a host's."""
        if worker not in self._living:
            return
        if why:
            self._job.lost(worker, f"the connection to it has ended ({why})", time.monotonic())
        else:
            self._silent[worker] = time.monotonic()

    def _note_silent(self) -> None:
        late = time.monotonic() - RECORD_SECONDS
        for worker, since in list(self._silent.items()):
            if since < late:
                del self._silent[worker]
                self._job.lost(worker, "its process does not hear us any more", time.monotonic())

    def _ended(self, worker: int, record: Mapping[str, Any]) -> None:
        if worker not in self._living:
            return
        self._living.discard(worker)
        self._silent.pop(worker, None)
        if self._signal:
            self._codes.add(int(record.get("code", 0)))
            return
        self._job.ended(worker, record, time.monotonic())

    def _reap_hosts(self) -> None:
        """Note the hosts whose process has ended, and with it their workers."""
        for name, host in list(self._hosts.items()):
            if host.process.poll() is None:
                continue
            host.drain(time.monotonic() + 0.2)  # what its workers said comes first
            del self._hosts[name]
            code = host.process.returncode
            why = f"what runs the workers of {name} has ended (exit code {code})"
            if host.ranks.name != THIS_HOST and code == 255:
                why = f"the connection to {name} failed; ssh said why, if it knew"
            record = {"code": code or 1, "host": name, "tail": [why], "why": why, "rank": 0}
            with contextlib.suppress(queue.Empty):
                while True:
                    self._heard.get_nowait()()
            for worker in [each for each in self._living if self._host_of[each] == name]:
                self._ended(worker, record)

    def _found_later(self, hosts: Mapping[str, int]) -> None:
        self._later(lambda: self._job.hosts_found(hosts, time.monotonic()))

    # ---- below -----------------------------------------------------------------------------------

    def _order(self, order: Mapping[str, Any]) -> None:
        for host in self._hosts.values():
            host.tell(order)

    def _end_hosts(self) -> None:
        """Kill the workers that are left, and end what runs them."""
        self._kill_at, self._abandon_at = math.inf, time.monotonic() + LOST_SECONDS
        self._order({"signal": int(signal.SIGTERM), "seconds": 0.0})
        for host in self._hosts.values():
            host.finish()


def _is_here(name: str) -> bool:
    return is_here(name.rpartition("@")[2])


def _say(text: str) -> None:
    write_all(2, f"horovodrun: {text}\n".encode())


def main(argv: Sequence[str]) -> None:
    """Run the job and end as it ended."""
    signal.pthread_sigmask(signal.SIG_BLOCK, WAKING)
    signal.signal(signal.SIGTTIN, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        driver = Driver(decode(argv[1]), argv[2:], os.environ)
    except OSError as error:
        _say(f"cannot start the job: {error}")
        os._exit(1)
    os._exit(driver.run())


if __name__ == "__main__":
    main(sys.argv)
