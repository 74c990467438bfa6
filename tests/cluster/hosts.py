"""Two hosts on one machine: network namespaces, a cable between them that can be made slow.

    with TwoHosts(rate_mbit=200) as hosts:
        process = hosts.start((2, 2), [sys.executable, "train.py"])  # 2 ranks on each host
        hosts.set_rate(50)  # while the job runs

A host is a network namespace. What runs there also has a host name, processes, a /dev/shm and files
of /etc of its own, so neither MPI nor the engine can take two hosts for one. ``mpirun`` or
``horovodrun`` starts on the first host and reaches the second one through the launch agent, which
passes no variables on, as ssh does. With TRANSPORT=tcp in the environment jobs are started without
MPI.

Needs iproute2 and root, if only that of a user namespace (``namespace_words``). Names of namespaces
carry the id of this process; what ended runs left is removed. What a machine refuses is a
``HostsError``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

BIN = Path(sys.executable).parent
PATH = os.pathsep.join([str(BIN), os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
STARTER = Path(__file__).resolve().parent.parent / "tiers/tcp_ranks.py"
SUBNET = "10.77.0"
DEVICE = "eth0"
ENTER = (
    'hostname "$0"; for f in "$1"/*; do mount --bind "$f" "/etc/${f##*/}"; done; shift; '
    "mount -t tmpfs -o size=512m tmpfs /dev/shm; exec 3<&0; "
    '"$@" <&3 3<&- & trap "kill $!" TERM; wait $!'
)
NEW_USER = ("unshare", "--user", "--map-root-user", "--net", "--mount")
OWN_RUN = 'mount -t tmpfs tmpfs /run && exec "$@"'  # where ip keeps the names of its namespaces
ROOT_VARIABLES = {
    f"{prefix}_ALLOW_RUN_AS_ROOT{end}": "1"
    for prefix in ("OMPI", "PRTE")
    for end in ("", "_CONFIRM")
}
SWITCHES = (
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("user.max_user_namespaces", "0", "10000"),
)
"""Kernel settings: (name, value that refuses user namespaces, value that allows them)."""

_numbers = itertools.count()


class HostsError(RuntimeError):
    """The machine refuses what the hosts need; the message is one sentence."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """One host.

    Attributes:
        name: Its host name.
        address: Its address on the cable.
        namespace: Its network namespace.
        etc: Folder whose entries lie over those of /etc there, e.g. ``hosts``.
    """

    name: str
    address: str
    namespace: str
    etc: Path

    def inside(self, words: Sequence[str]) -> list[str]:
        """Return the words that run ``words`` on this host; all of it ends with the first."""
        enter = ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "--pid", "--fork"]
        enter += ["--kill-child", "--mount-proc", "sh", "-c", ENTER, self.name, str(self.etc)]
        return [*enter, *words]


class TwoHosts:
    """Context manager: two hosts and the cable between them; ``a`` is the first, ``b`` the other.

    Args:
        rate_mbit: Speed of the cable in Mbit/s, each way; None: as fast as the machine.
        around: Returns the words that go before all that a launcher starts on a host.
    """

    def __init__(
        self,
        rate_mbit: float | None = None,
        around: Callable[[Host], Sequence[str]] = lambda host: (),
    ) -> None:
        self._around = around
        self._stem = f"hvd-{os.getpid()}-{next(_numbers)}"
        self._folder = Path(tempfile.mkdtemp(prefix=f"{self._stem}-"))
        self.a, self.b = self._host("a", 1), self._host("b", 2)
        self._rate_mbit = rate_mbit
        self._running: list[subprocess.Popen[str]] = []

    def _host(self, letter: str, number: int) -> Host:
        return Host(
            name=f"host-{letter}",
            address=f"{SUBNET}.{number}",
            namespace=f"{self._stem}-{letter}",
            etc=self._folder / letter,
        )

    def __enter__(self) -> TwoHosts:
        try:
            remove_leftovers()
            self._build()
            self.set_rate(self._rate_mbit)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def hosts(self) -> tuple[Host, Host]:
        return self.a, self.b

    def set_rate(self, rate_mbit: float | None) -> None:
        """Make the cable so fast, each way, also while jobs run; None takes the limit away."""
        for host in self.hosts:
            tc = ["netns", "exec", host.namespace, "tc", "qdisc"]
            if rate_mbit is None:
                _ip(*tc, "del", "dev", DEVICE, "root", ok=True)
                continue
            burst = max(64 * 1024, int(rate_mbit * 125))  # 64 KiB: the largest packet; or 1 ms
            words = ["rate", f"{rate_mbit}mbit", "burst", str(burst), "latency", "50ms"]
            _ip(*tc, "replace", "dev", DEVICE, "root", "tbf", *words)

    def set_cable(self, *, up: bool) -> None:
        """Pull the cable out or put it in again, also while jobs run."""
        _ip("-n", self.a.namespace, "link", "set", DEVICE, "up" if up else "down")

    def mpirun(self, ranks: tuple[int, int], environ: Mapping[str, str]) -> list[str]:
        """Return the words before a program that start ``ranks`` = (ranks on a, ranks on b)."""
        words = [str(BIN / "mpirun"), "-n", str(sum(ranks)), "--host", self.places(ranks)]
        words += ["--bind-to", "none"]
        return words + [word for name in sorted(environ) for word in ("-x", name)]

    def without_mpi(self, ranks: tuple[int, int]) -> list[str]:
        """Return the words before a program that start ``ranks`` without MPI.

        The second host gets all variables of the first one.
        """
        words = [sys.executable, str(STARTER), "--hosts", self.places(ranks)]
        return [*words, "--agent", str(self.agent), "--address", self.a.address]

    def places(self, ranks: tuple[int, int]) -> str:
        """Return ``ranks`` as ``horovodrun -H`` and ``mpirun --host`` want them."""
        return ",".join(f"{h.name}:{n}" for h, n in zip(self.hosts, ranks, strict=True) if n)

    def launch_variables(self) -> dict[str, str]:
        """Return what mpirun and horovodrun need to know of these hosts, for one job.

        The daemon stays attached to the launch agent: an agent that ends takes its host's
        processes with it. What killed ones leave behind goes with the hosts, and no other job
        meets it: numbers of processes come again on a host.
        """
        return {
            "PRTE_MCA_plm_ssh_agent": str(self.agent),
            "PRTE_MCA_prte_leave_session_attached": "1",
            "PRTE_MCA_prte_tmpdir_base": tempfile.mkdtemp(prefix="job-", dir=self._folder),
            "PRTE_MCA_prte_if_include": DEVICE,
            "OMPI_MCA_btl": "self,sm,tcp",
            "OMPI_MCA_btl_tcp_if_include": DEVICE,
        }

    @property
    def agent(self) -> Path:
        """Program that runs a command on a host: ``agent HOST COMMAND``."""
        return self._folder / "agent"

    def start(
        self, ranks: tuple[int, int], words: Sequence[str | Path], **environ: str
    ) -> subprocess.Popen[str]:
        """Start a job with ``environ`` set on all its ranks; its output goes to pipes."""
        environ = {"OMP_NUM_THREADS": "1", **environ}
        if os.environ.get("TRANSPORT") == "tcp":
            return self.start_on_a([*self.without_mpi(ranks), *words], **environ)
        words = [*self.mpirun(ranks, environ), *words]
        return self.start_on_a(words, **self.launch_variables(), **environ)

    def start_on_a(
        self, words: Sequence[str | Path], *, output: int | None = subprocess.PIPE, **environ: str
    ) -> subprocess.Popen[str]:
        """Start a command on host a, in a session of its own; None leaves it our own output."""
        kept = {name: value for name, value in os.environ.items() if not _is_of_a_job(name)}
        process = subprocess.Popen(
            self.a.inside([str(word) for word in words]),
            env={**kept, **ROOT_VARIABLES, "PATH": PATH, **environ},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            text=True,
            start_new_session=True,
        )
        self._running.append(process)
        return process

    def check(self) -> None:
        """Run a program on each host.

        Raises:
            HostsError: One of them cannot; says why.
        """
        for host in self.hosts:
            if refusal := _refusal(host.inside(["true"])):
                raise HostsError(f"no process starts on {host.name}: {refusal}")

    def run(
        self, ranks: tuple[int, int], words: Sequence[str | Path], limit_s: float, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a job to its end.

        Raises:
            subprocess.TimeoutExpired: It did not end within ``limit_s`` seconds; all that runs on
                the hosts is killed.
        """
        process = self.start(ranks, words, **environ)
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            _kill(process)
            for host in self.hosts:  # a daemon takes the next mpirun of that number for its own
                _kill_all_in(host.namespace)
            raise
        finally:
            _kill(process)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def processes(self, host: Host) -> list[int]:
        """Return the processes that run on ``host``."""
        return [int(word) for word in _ip("netns", "pids", host.namespace).split()]

    def close(self) -> None:
        """End what runs on the hosts and remove them; may be called again."""
        for process in self._running:
            _kill(process)
        self._running.clear()
        for host in self.hosts:
            remove_namespace(host.namespace)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _build(self) -> None:
        lines = ["127.0.0.1 localhost", *(f"{h.address} {h.name}" for h in self.hosts)]
        for host in self.hosts:
            _ip("netns", "add", host.namespace)
            host.etc.mkdir()
            (host.etc / "hosts").write_text("\n".join(lines) + "\n")
        a, b = self.a.namespace, self.b.namespace
        _ip("link", "add", DEVICE, "netns", a, "type", "veth", "peer", DEVICE, "netns", b)
        for host in self.hosts:
            _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", DEVICE)
            for device in ("lo", DEVICE):
                _ip("-n", host.namespace, "link", "set", device, "up")
        self._write_agent()

    def _write_agent(self) -> None:
        lines = ["#!/bin/sh", 'host="$1"; shift', 'case "$host" in']
        clean = f'env -i PATH="{BIN}:$PATH" HOME="$HOME" sh -c "$*"'
        for host in self.hosts:
            before = shlex.join(host.inside(self._around(host)))
            lines.append(f"{host.name}) exec {before} {clean} ;;")
        lines += ["esac", 'echo "there is no host $host" >&2; exit 1']
        self.agent.write_text("\n".join(lines) + "\n")
        self.agent.chmod(0o755)


def namespace_words() -> list[str]:
    """Return the words before a program that may make hosts: none for root.

    Without root the program gets a user namespace, where it is root of networks and mounts of its
    own; the files that it writes belong to the user.

    Raises:
        HostsError: Neither works here; says why and what to do.
    """
    for program, package in (("ip", "iproute2"), ("tc", "iproute2"), ("unshare", "util-linux")):
        if shutil.which(program, path=PATH) is None:
            raise HostsError(f"there is no program {program!r} here: install {package}")
    if os.geteuid() == 0 and not _refusal(["unshare", "--net", "--mount", "true"]):
        return []
    words = [*NEW_USER, "sh", "-c", OWN_RUN, "sh"]
    if refusal := _refusal([*words, "true"]):
        raise HostsError(f"network namespaces are refused ({refusal}): {_way_out()}")
    return words


def _way_out() -> str:
    """Return what to do where user namespaces are refused."""
    if os.geteuid() == 0:
        return "in a container, start it with --privileged"
    for name, refuses, allows in SWITCHES:
        path = Path("/proc/sys", *name.split("."))
        if path.exists() and path.read_text().strip() == refuses:
            return f"run this as root, or allow them with `sudo sysctl {name}={allows}`"
    return "run this as root"


def _refusal(words: Sequence[str]) -> str:
    """Return why ``words`` fail, or ""."""
    done = _do(words)
    if done.returncode == 0:
        return ""
    return next(iter(done.stderr.strip().splitlines()[-1:]), f"exit code {done.returncode}")


def _do(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PATH": PATH}
    return subprocess.run(words, env=environ, capture_output=True, text=True, timeout=20)


def remove_namespace(name: str) -> None:
    """End what still runs in the network namespace ``name`` and remove it, if it exists."""
    _kill_all_in(name)
    _ip("netns", "del", name, ok=True)


def _kill_all_in(namespace: str) -> None:
    for word in _ip("netns", "pids", namespace, ok=True).split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(word), signal.SIGKILL)


def remove_leftovers() -> None:
    """Remove namespaces and folders of processes that ended without removing them."""
    for line in _ip("netns", "list").splitlines():
        if _has_ended(name := line.split()[0]):
            remove_namespace(name)
    for folder in Path(tempfile.gettempdir()).glob("hvd-*"):
        if _has_ended(folder.name):
            shutil.rmtree(folder, ignore_errors=True)


def _has_ended(name: str) -> bool:
    """Return whether ``name`` is that of hosts whose process has ended."""
    match = re.fullmatch(r"hvd-(\d+)-\d+-\w+", name)
    return match is not None and not Path("/proc", match[1]).exists()


def _is_of_a_job(name: str) -> bool:
    return name.startswith(("HOROVOD_", "OMPI_", "PRTE_", "PMIX_", "PMI_"))


def _ip(*words: str, ok: bool = False) -> str:
    """Run ``ip`` and return what it prints; with ``ok`` it may fail.

    Raises:
        HostsError: It fails; says how.
    """
    done = _do(["ip", *words])
    if done.returncode and not ok:
        raise HostsError(f"ip {' '.join(words)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    process.wait(10)
