"""The service as a process of its own, over real pipes."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune.service import priority
from autotune.service.imports import Imported
from autotune.service.priority import NICE
from autotune.service.process import EndOfInput, Inbox, Service
from autotune.service.protocol import (
    Finish,
    Hello,
    Ready,
    Refused,
    Signature,
    Steps,
    decode,
    encode,
)
from autotune.space import PARAMETERS
from autotune.storage import read_log
from autotune.trial import CommParams, RunState, TrialState
from autotune.tuning.changes import Apply, Done, Line, Progress
from autotune.tuning.events import RunFinished
from autotune.tuning.exploring.search import FEWEST_TRIALS
from autotune.tuning.messages import gain_text, params_text
from autotune.tuning.steps.records import ResultCheck, TunerSettings

OPERATIONS = (("allreduce", 150_000),) * 161
PATIENCE_S = 90.0


class Runtime:
    """The other end of the pipe."""

    def __init__(self, job=None, **hello: object) -> None:
        self.job = job
        self.messages: list = []
        self.hello = {
            "settings": TunerSettings(seed=3, warmup_samples=1),
            "inert": {"hierarchical_allreduce": "one host", "hierarchical_allgather": "one host"},
            "size": 2,
            "local_size": 2,
            "cross_size": 1,
            "host": "testhost",
            "pid": os.getpid(),
            **hello,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "autotune.service"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._incoming: queue.Queue = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self._incoming.put(decode(line))
        self._incoming.put(None)

    def send(self, message) -> None:
        self.process.stdin.write(encode(message))
        self.process.stdin.flush()

    def receive(self, timeout: float = PATIENCE_S):
        message = self._incoming.get(timeout=timeout)
        if message is not None:
            self.messages.append(message)
        if isinstance(message, Apply):
            self.job.params = CommParams.from_dict(message.params)
            self.job.epoch = message.epoch
        return message

    def greet(self):
        self.send(Hello(**self.hello))
        return self.receive()

    def receive_all(self) -> None:
        while self.receive() is not None:
            pass

    def train(self, until) -> None:
        """Make steps, no faster than real ones would be, until ``until()``."""
        self.send(Signature(signature=7, operations=OPERATIONS))
        deadline = time.monotonic() + PATIENCE_S
        while not until() and time.monotonic() < deadline:
            self.send(Steps(records=(self.job.step(), self.job.step())))
            time.sleep(0.002)
            while not self._incoming.empty():
                self.receive()
        assert until(), self.messages[-3:]

    def has(self, kind: type) -> bool:
        return any(isinstance(message, kind) for message in self.messages)

    def of(self, kind: type) -> list:
        return [message for message in self.messages if isinstance(message, kind)]

    def texts(self) -> str:
        return "\n".join(m.text for m in self.messages if isinstance(m, Line | Progress | Done))

    def end(self) -> int:
        self.send(Finish())
        self.receive_all()
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def runtime(job):
    running = []

    def start(surface: str = "bowl", **hello: object) -> Runtime:
        running.append(Runtime(job(surface), **hello))
        return running[-1]

    yield start
    for each in running:
        each.close()


@dataclass(frozen=True, kw_only=True)
class Lived:
    """What is known of a service without a log that has ended.

    Attributes:
        runtime: Its other end, with all that was said.
        code: Its exit code.
        nice: The nice values of its threads while it tuned, once what imports was through.
    """

    runtime: Runtime
    code: int
    nice: set[int]


@pytest.fixture(scope="module")
def lived(job) -> Lived:
    """One that was sent garbage and Ctrl-C before it tuned: it costs a second to start one."""
    service = Runtime(job("bowl"))
    try:
        service.greet()
        service.process.stdin.write(b"not json\n{}\n\n")
        service.process.send_signal(signal.SIGINT)
        service.train(until=lambda: len(service.of(Progress)) >= 2)
        own = {min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICE)}
        deadline = time.monotonic() + PATIENCE_S
        while nice_values(service.process.pid) != own and time.monotonic() < deadline:
            time.sleep(0.05)
        nice = nice_values(service.process.pid)
        return Lived(runtime=service, code=service.end(), nice=nice)
    finally:
        service.close()


def nice_values(pid):
    """Return the nice values of the threads of a process."""
    stats = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            stats.append((task / "stat").read_text())
    return {int(stat.rsplit(")", 1)[1].split()[16]) for stat in stats}


def test_once_it_tunes_every_thread_has_the_low_priority(lived):
    assert lived.nice == {min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICE)}


def test_without_a_log_it_tunes_and_says_so(lived):
    texts = lived.runtime.texts()
    assert "without a log" in texts and "HOROVOD_AUTOTUNE_LOG" in texts
    assert "unfinished" in texts and "goes on from here" not in texts


def test_garbage_between_messages_is_reported_and_ignored(lived):
    assert "ignored" in lived.runtime.texts() and lived.runtime.has(Progress)


def test_ctrl_c_is_left_to_the_job(lived):
    assert lived.code == 0


def test_tunes_a_job_to_the_end_and_logs_it(runtime, tmp_path):
    csv = tmp_path / "log.csv"
    service = runtime(csv_path=str(csv))
    assert isinstance(service.greet(), Ready)
    service.train(until=lambda: service.has(Done))
    (done,) = service.of(Done)
    assert done.certified and service.job.params.as_dict() == done.params
    assert service.end() == 0
    rows = csv.read_text().splitlines()
    settings = [row.rpartition(",")[0] for row in rows]
    assert settings[-1] in settings[1:-1]
    assert len(rows) - 2 == len([p for p in service.of(Progress) if "trial" in p.text])
    again = runtime(csv_path=str(csv))
    again.greet()
    again.train(until=lambda: again.has(Done))
    assert again.of(Done)[0].params == done.params and "replayed" in again.texts()
    assert csv.read_text().splitlines() == rows  # no trial was made


def test_killed_while_tuning_it_resumes_and_repeats_nothing(runtime, tmp_path):
    csv = tmp_path / "log.csv"
    first = runtime(csv_path=str(csv))
    first.greet()
    first.train(until=lambda: len(first.of(Progress)) >= 3)
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    kept = csv.read_text().splitlines()
    assert len(kept) >= 3
    second = runtime(
        csv_path=str(csv), settings=TunerSettings(seed=3, warmup_samples=1, max_samples=7)
    )
    second.greet()
    second.train(until=lambda: second.has(Done))
    assert second.end() == 0
    rows = csv.read_text().splitlines()
    assert rows[: len(kept)] == kept
    settings = [row.rsplit(",", 1)[0] for row in rows[1:-1]]
    assert len(settings) == len(set(settings)) == 7
    assert read_log(str(csv)) is not None


def test_the_best_so_far_is_the_same_for_the_job_and_for_its_logs(runtime, tmp_path):
    csv = tmp_path / "log.csv"
    service = runtime(csv_path=str(csv))
    service.greet()
    service.train(until=lambda: len(service.of(Progress)) >= FEWEST_TRIALS)
    assert service.end() == 0
    (said,) = [line.text for line in service.of(Line) if "unfinished" in line.text]
    for path in (csv, tmp_path / "log.db", tmp_path):
        view = read_log(str(path))
        names = ("fusion_threshold_bytes", "cycle_time_ms", "cache_capacity")
        assert view.standing is not None
        best = view.standing.best
        what = params_text(best.params, names) if best.trial_id else "the default"
        assert f"best so far: {what}" in said
        gain = view.standing.gain
        assert (gain is None) == (best.trial_id == 0)
        assert gain is None or f"at {gain_text(gain)}, not certified yet" in said
    assert "the same job with the same HOROVOD_AUTOTUNE_LOG goes on from here" in service.texts()


def test_a_setting_with_wrong_results_is_given_up_and_logged_as_rejected(runtime, tmp_path):
    """Case T15, over the pipe."""
    csv = tmp_path / "log.csv"
    service = runtime(csv_path=str(csv))
    service.greet()
    service.train(until=lambda: service.job.epoch > 0)
    epoch, wrong = service.job.epoch, service.job.params
    service.send(ResultCheck(epoch=epoch, name="grad.1", ok=False, worst_error=0.5))
    service.train(until=lambda: len(service.of(Progress)) >= 3)
    assert service.end() == 0
    assert "wrong result of 'grad.1'" in service.texts()
    states = {trial.params: trial.state for trial in read_log(str(csv)).trials}
    assert states[wrong] is TrialState.REJECTED


def test_the_logs_are_served_before_a_parent_that_is_gone():
    finished = RunFinished(state=RunState.UNFINISHED, best=None)
    served = []

    class Gone:
        def send(self, message):
            raise EndOfInput

    service = Service(Inbox(os.getppid()), Gone())
    service._tuner = SimpleNamespace(finish=lambda: [Line(text="unfinished"), finished])
    service._logs = SimpleNamespace(
        take=lambda event: isinstance(event, RunFinished) and not served.append(event),
        close=lambda: served.append("closed"),
        complaints=list,
        notes=list,
    )
    service._end()
    assert served == [finished, "closed"]


def test_nothing_heavy_is_imported_before_ready():
    code = (
        "import sys, autotune.service.process, autotune.tuning.tuner, autotune.service.logkeeper\n"
        "sys.exit(any(name in sys.modules for name in ('skopt', 'sklearn', 'scipy', 'torch')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("oversubscribed", [True, False])
def test_steps_made_during_imports_are_not_read_where_ranks_fill_the_cores(job, oversubscribed):
    told = []
    inbox = Inbox(os.getppid())
    service = Service(inbox, outbox=None)
    service._is_oversubscribed = oversubscribed
    service._tuner = SimpleNamespace(
        observe=lambda records, disturbed: told.append(disturbed) or [], work=lambda: None
    )
    service._logs = SimpleNamespace(keep_best=lambda standing: None, complaints=list)
    steps = encode(Steps(records=(job("bowl").step(),)))
    service._import()
    service._take(steps)
    while (imported := inbox.get()) is None:
        pass
    assert isinstance(imported, Imported) and "skopt.learning" in sys.modules
    service._take(imported)
    service._import()  # only once
    for _ in range(3):
        service._take(steps)
    assert told == ([True, True, False, False] if oversubscribed else 4 * [False])


@pytest.mark.parametrize(
    ("cpu_max", "oversubscribed"), [("200000 100000", True), ("max 100000", False)]
)
def test_ranks_fill_the_cores_that_a_container_may_use(
    tmp_path, monkeypatch, cpu_max, oversubscribed
):
    """Two ranks on four cores, of which a quota leaves two."""
    files = {"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cpu.max": cpu_max}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(priority, "ROOT", tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)))
    service = Service(Inbox(os.getppid()), outbox=None)
    service._take_job(Hello(size=2, local_size=2, cross_size=1, host="h", pid=os.getpid()))
    assert service._is_oversubscribed == service._tuner._job.oversubscribed == oversubscribed


def test_closed_input_is_the_end(runtime, tmp_path):
    service = runtime(csv_path=str(tmp_path / "log.csv"))
    service.greet()
    service.process.stdin.close()
    assert service.process.wait(PATIENCE_S) == 0


def test_dies_with_its_parent_although_the_pipe_stays_open(tmp_path):
    """A forked worker of the training process may hold the pipe's other end."""
    code = (
        "import os, subprocess, sys, time\n"
        "read, write = os.pipe()\n"
        "os.set_inheritable(write, True)\n"
        "service = subprocess.Popen([sys.executable, '-m', 'autotune.service'], stdin=read)\n"
        "holder = subprocess.Popen(['sleep', '60'], pass_fds=[write])\n"
        "print(service.pid, holder.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    service, holder = map(int, parent.stdout.readline().split())
    time.sleep(0.5)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    try:
        deadline = time.monotonic() + PATIENCE_S
        while alive(service) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not alive(service)
    finally:
        os.kill(holder, signal.SIGKILL)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.parametrize(
    "hello, part",
    [
        ({"csv_path": "/nonexistent/folder/log.csv"}, "/nonexistent/folder"),
        ({"csv_path": "/tmp"}, "/tmp"),
        ({"fixed": {"cycle_time_ms": -3}}, "cycle_time_ms"),
        ({"version": 99}, "protocol"),
    ],
)
def test_a_job_that_cannot_be_taken_is_refused_with_a_sentence(runtime, hello, part):
    service = runtime(**hello)
    refused = service.greet()
    assert isinstance(refused, Refused) and part in refused.message
    assert service.process.wait(PATIENCE_S) != 0


def test_a_log_of_a_live_job_is_refused(runtime, tmp_path):
    csv = str(tmp_path / "log.csv")
    assert isinstance(runtime(csv_path=csv).greet(), Ready)
    refused = runtime(csv_path=csv).greet()
    assert isinstance(refused, Refused) and "testhost" in refused.message


@pytest.mark.parametrize("hello", [{"size": 1}, {"fixed": {p.name: p.default for p in PARAMETERS}}])
def test_nothing_to_tune_is_said_before_the_first_step(runtime, hello):
    service = runtime(**hello)
    service.greet()
    while not service.has(Done):
        service.receive()
    assert "nothing to tune" in service.of(Done)[0].text and not service.has(Apply)
    assert service.end() == 0


def test_a_short_job_says_what_it_needed(runtime):
    service = runtime()
    service.greet()
    service.send(Signature(signature=7, operations=OPERATIONS))
    service.send(Steps(records=tuple(service.job.step() for _ in range(7))))
    assert service.end() == 0
    assert "saw 7 steps, needs at least 16 more" in service.texts()
