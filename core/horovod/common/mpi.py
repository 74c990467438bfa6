"""MPI as the runtime sees it: start and end by mpi4py, a job's communicators.

``mpi4py.MPI`` starts MPI when it is imported, so nothing imports it before ``hvd.init()``, and
nothing at all in a job without MPI. Where we are the first to import it we also end MPI ourselves,
at exit, in the process that started it: a forked child never ends it, and a process whose engine
failed leaves without (MPI's finalize could hang).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from horovod import _engine
from horovod.common import mpi_library
from horovod.common.world import (
    CONNECT_SECONDS,
    chosen_ranks,
    is_list_of_ranks,
    number_hosts,
)

if TYPE_CHECKING:
    from mpi4py import MPI

PATIENCE_SECONDS = 2.0
"""How long a rank that ends by an error waits for the others before it leaves without MPI's end."""
CAUGHT_PATIENCE_SECONDS = 60.0
"""The same where its script has caught the error: the others meet theirs when they get there."""
POLL_SECONDS = 0.001
"""Waiting ranks sleep between tests: the core may be needed by the rank they wait for."""
ROUND_TRIPS = 12
"""Of ``clock``."""
ABORT_DELAYS = ("OMPI_MCA_opal_abort_delay", "OMPI_MCA_mpi_abort_delay")
"""Open MPI's variables, the second an older name: seconds from an error that ends the job to that
end."""


class NoMpiError(RuntimeError):
    """There is no MPI that mpi4py can load."""


def start() -> tuple[Any, bool]:
    """**Local.** Return (the module ``mpi4py.MPI``, whether ending MPI is up to us); starts MPI.

    Raises:
        NoMpiError: mpi4py is missing or finds no MPI library.
        RuntimeError: MPI was already ended.
    """
    ours = "mpi4py.MPI" not in sys.modules
    try:
        if ours:
            import mpi4py

            ours = mpi4py.rc.finalize is not False
            mpi4py.rc.finalize = False
            _let_mpirun_speak()
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise NoMpiError(
            f"hvd.init() cannot start MPI through mpi4py: {error}; see 'horovodrun --check-build'"
        ) from error
    if MPI.Is_finalized():
        raise RuntimeError("hvd.init(): MPI was already ended in this process; start a new one")
    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
        ours = True
    return MPI, ours


def _let_mpirun_speak() -> None:
    """Have Open MPI wait a second before it ends a job of which it has lost a rank.

    Over TCP it does that by itself, in whatever rank sees the connection end, and knows the host
    alone. By then mpirun has noticed whose process it was, ends the job and says so.
    """
    if not any(name in os.environ for name in ABORT_DELAYS):
        os.environ[ABORT_DELAYS[0]] = "1"


def thread_error(mpi: Any, size: int) -> str | None:
    """**Local.** Return why the thread level of MPI is not enough, or None.

    One thread at a time is inside MPI, so SERIALIZED is enough as long as the script makes no MPI
    calls of its own; below that only a job of one rank works.
    """
    level = mpi.Query_thread()
    if size == 1 or level >= mpi.THREAD_SERIALIZED:
        return None
    names = {mpi.THREAD_SINGLE: "THREAD_SINGLE", mpi.THREAD_FUNNELED: "THREAD_FUNNELED"}
    return (
        f"MPI provides {names.get(level, level)}: expected at least THREAD_SERIALIZED, as the "
        "engine has its own thread; remove mpi4py.rc.thread_level and mpi4py.rc.threads, or use an "
        "MPI that was built with thread support"
    )


class MpiWorld:
    """All processes that MPI's launcher has started, or those of a job. Implements ``World``.

    Args:
        module: The module ``mpi4py.MPI``.
        comm: Its processes; of a job: for us alone.
        ours: Ending MPI is up to us.
        started: The world that a job's world is of; None: this is all.
    """

    kind: Literal["mpi", "tcp"] = "mpi"
    name = "MPI"
    connect_seconds = CONNECT_SECONDS

    def __init__(
        self, module: Any, comm: MPI.Comm, *, ours: bool, started: MpiWorld | None = None
    ) -> None:
        self._mpi, self._comm, self._ours, self._started = module, comm, ours, started
        self._exit_comm: MPI.Comm | None = None
        self._ended: list[MPI.Comm] = []

    @property
    def version(self) -> str:
        """Name and version of the library."""
        text: str = self._mpi.Get_library_version()
        return text.split(",")[0].strip()

    @property
    def rank(self) -> int:
        """Of this process."""
        return self._comm.rank

    @property
    def size(self) -> int:
        """Number of processes."""
        return self._comm.size

    @property
    def has_threads(self) -> bool:
        """Whether MPI provides THREAD_MULTIPLE."""
        return bool(self._mpi.Query_thread() == self._mpi.THREAD_MULTIPLE)

    def allgather(self, value: Any) -> list[Any]:
        """As of ``World``."""
        return self._comm.allgather(value)

    def wait(self) -> None:
        """As of ``World``."""
        wait(self._comm, seconds=None)

    def bcast(self, value: Any) -> Any:
        """As of ``World``."""
        return self._comm.bcast(value, root=0)

    def find_hosts(self) -> tuple[int, ...]:
        """Return as of ``World``: MPI says who can share memory."""
        local = self._comm.Split_type(self._mpi.COMM_TYPE_SHARED, self._comm.rank)
        leaders = self._comm.allgather(local.bcast(self._comm.rank, root=0))
        local.Free()
        return number_hosts(leaders)

    def host_name(self) -> str:
        """As of ``World``."""
        return str(self._mpi.Get_processor_name())

    def clock(self) -> tuple[int, int]:
        """As of ``World``.

        Cristian's algorithm: rank 0 answers with its time; the shortest of some round trips bounds
        the error.
        """
        if self.rank == 0:
            for rank in range(1, self.size):
                for _ in range(ROUND_TRIPS):
                    self._comm.recv(source=rank)
                    self._comm.send(time.monotonic_ns(), dest=rank)
            return 0, 0
        return min((self._ask_time() for _ in range(ROUND_TRIPS)), key=lambda reading: reading[1])

    def _ask_time(self) -> tuple[int, int]:
        sent = time.monotonic_ns()
        self._comm.send(None, dest=0)
        theirs = self._comm.recv(source=0)
        received = time.monotonic_ns()
        return (sent + received) // 2 - theirs, (received - sent + 1) // 2

    def subset(self, comm: object) -> MpiWorld:
        """As of ``World``. What earlier jobs have left is freed: their ranks are all here again."""
        while self._ended:
            self._ended.pop(0).Free()
        chosen = self._job_communicator(comm)
        if self._exit_comm is None:
            self._exit_comm = chosen.Dup()
        return MpiWorld(self._mpi, chosen, ours=self._ours, started=self)

    def _job_communicator(self, comm: object) -> MPI.Comm:
        if comm is None or (isinstance(comm, Sequence) and not comm):
            return self._comm.Dup()
        if isinstance(comm, self._mpi.Comm):
            return comm.Dup()  # type: ignore[no-any-return]
        if not is_list_of_ranks(comm):
            raise ValueError(
                f"hvd.init(comm=...): expected None, a list of ranks or an mpi4py "
                f"communicator, got {comm!r}"
            )
        ranks = chosen_ranks(comm, self.rank, self.size)  # type: ignore[arg-type]
        group = self._comm.group.Incl(list(ranks))
        created: MPI.Comm = self._comm.Create_group(group)  # type: ignore[attr-defined]
        group.Free()
        return created

    def ranks_of(self, comm: Any) -> tuple[int, ...]:
        """As of ``World``."""
        group = comm.Get_group()
        return tuple(self._mpi.Group.Translate_ranks(group, None, self._comm.Get_group()))

    def error(self) -> str | None:
        """As of ``World``."""
        return thread_error(self._mpi, self.size)

    def transport(
        self, key: bytes, hosts: Sequence[int], interfaces: str
    ) -> _engine.Transport | None:
        """Return as of ``World``; MPI is told itself which interfaces it may use."""
        del key, hosts, interfaces
        if self.size == 1:
            return None
        return mpi_library.transport(self._mpi, self._comm, self._far())

    def _far(self) -> list[bool]:
        """**Collective.** Return of each rank whether messages between it and this one are cut."""
        hosts = self.find_hosts()  # MPI's own: names that the user gives change nothing for it
        is_wanted = all(self.allgather(mpi_library.sends_by_tcp(self._mpi, os.environ)))
        return [is_wanted and host != hosts[self.rank] for host in hosts]

    def free(self) -> None:
        """As of ``World``."""
        self._comm.Free()

    def leave(self) -> None:
        """As of ``World``. What is on its way stays MPI's until it is complete."""
        if self._started is not None:
            self._started._ended.append(self._comm)

    def forget(self) -> None:
        """As of ``World``; MPI stays with the parent."""

    def end(self, *, failed: bool, raised: bool, leave: Callable[[int], None]) -> None:
        """As of ``World``."""
        end(
            self._mpi,
            self._exit_comm,
            failed=failed,
            pending=_engine.messages_were_left_behind(),
            raised=raised,
            ours=self._ours,
            leave=leave,
        )


def start_world() -> MpiWorld:
    """**Local.** Start MPI; return the world of all processes that its launcher has started.

    Raises:
        RuntimeError: As of ``start``.
    """
    module, ours = start()
    return MpiWorld(module, module.COMM_WORLD, ours=ours)


def wait(comm: MPI.Comm, seconds: float | None) -> bool:
    """**Collective.** Return True when all ranks of ``comm`` are here, False after ``seconds``."""
    request = comm.Ibarrier()
    deadline = None if seconds is None else time.monotonic() + seconds
    while not request.Test():
        if deadline is not None and time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def end(
    mpi: Any,
    comm: MPI.Comm | None,
    *,
    failed: bool,
    pending: bool,
    raised: bool,
    ours: bool,
    leave: Callable[[int], None],
) -> None:
    """End MPI at the exit of the process, unless that could hang. **Collective** over ``comm``.

    Args:
        mpi: The module ``mpi4py.MPI``.
        comm: The job's communicator; None when the job never got one.
        failed: The engine had a fatal error: leave without ending MPI, and the launcher ends the
            job with a code other than 0, unless the script caught it and the other ranks come to
            their end, too.
        pending: After such an error MPI may still have messages to deliver.
        raised: This process ends by an exception: wait a little for the other ranks (they may
            be raising the same), then leave without them, so that the launcher ends them.
        ours: Ending MPI is up to us; else mpi4py does it right after us.
        leave: Ends the process at once with an exit code (``os._exit``).
    """
    if mpi.Is_finalized():
        return
    if failed and not raised and not pending and comm is not None and ours:
        failed = not _come_too(mpi, comm)
    elif not failed and comm is not None and (ours or raised):
        failed = not wait(comm, seconds=PATIENCE_SECONDS if raised else None)
    if not failed and ours:
        mpi.Finalize()
    elif failed and not ours:
        leave(1)


def _come_too(mpi: Any, comm: MPI.Comm) -> bool:
    """**Collective.** Return whether all ranks come; some may be gone for good."""
    try:
        return wait(comm, seconds=CAUGHT_PATIENCE_SECONDS)
    except mpi.Exception:
        return False
