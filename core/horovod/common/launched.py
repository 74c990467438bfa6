"""How was this process started? Pure functions of its environment.

Launchers tell a process its place in the job by variables, and several may have done so: a Slurm
step that runs mpirun, an mpirun that runs one torchrun per host. The innermost one counts, as it
started this process. Claims that cannot all be true (a stale RANK beside MPI's) are one sentence,
since ranks that believe the wrong one train separately without a word.

An allocation sets SLURM_NTASKS also for a process that legitimately runs alone in it: a variable
counts only where the launcher evidently started *this* process.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from horovod.common.nodelist import first_node

CONTROLLER = "HOROVOD_CONTROLLER"
MEETING_HOST = "HOROVOD_GLOO_RENDEZVOUS_ADDR"
MEETING_PORT = "HOROVOD_GLOO_RENDEZVOUS_PORT"
FIRST_SLURM_PORT, SLURM_PORTS = 12_000, 18_000
"""Ports that a Slurm job may meet at: below those that Linux gives to clients (from 32,768)."""
_LAST_PORT = 65_535


class Launcher(enum.StrEnum):
    """Who starts ranks; the value is what messages call it."""

    MPI = "MPI's launcher"
    HOROVODRUN = "horovodrun --gloo"
    TORCHRUN = "torchrun"
    VARIABLES = "a launcher that sets RANK and WORLD_SIZE"
    SLURM = "srun"
    NONE = "nobody"


class LaunchError(RuntimeError):
    """What the launchers' variables say cannot be; one sentence."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the ranks of a job meet.

    Attributes:
        host: Name or address.
        port: TCP port.
        listener: Who listens there: HOROVODRUN the launcher, TORCHRUN its agent's store, where rank
            0 leaves the address at which it listens itself; all others: rank 0.
        job: What tells the job from another one that could meet there; for the store its key.
    """

    host: str
    port: int
    listener: Launcher
    job: str


@dataclass(frozen=True, kw_only=True)
class Launched:
    """How this process was started.

    Attributes:
        launcher: By whom; NONE where nobody says so.
        rank: Its rank, 0 <= rank < size.
        size: Number of ranks that the launcher has started, 1 where it does not say (PMIx).
        place: Where the ranks meet; None where MPI brings them together, and for a rank alone.
    """

    launcher: Launcher
    rank: int = 0
    size: int = 1
    place: Place | None = None

    @property
    def needs_mpi(self) -> bool:
        """Whether MPI's launcher has started this process, so that only MPI joins its ranks."""
        return self.launcher is Launcher.MPI


@dataclass(frozen=True, kw_only=True)
class _Claim:
    """What one launcher says; ``size`` is None where it does not say it."""

    launcher: Launcher
    rank: int
    size: int | None
    variables: tuple[str, ...]

    def describe(self, environ: Mapping[str, str]) -> str:
        said = ", ".join(f"{name}={environ[name]}" for name in self.variables)
        return f"{said} ({self.launcher})"


def find(environ: Mapping[str, str], *, has_mpi: bool) -> Launched:
    """**Local.** Return how the process with ``environ`` was started.

    HOROVOD_CONTROLLER decides between MPI and the others where both claim the process. Without an
    MPI library the claims of its launchers count only where there is no other.

    Args:
        environ: Environment of the process.
        has_mpi: An MPI library can be loaded.

    Raises:
        LaunchError: Variables disagree, or say nothing that can be.
    """
    controller = environ.get(CONTROLLER, "").strip().lower()
    claims = _claims(environ)
    if controller == "mpi":
        claims = [claim for claim in claims if claim.launcher is Launcher.MPI]
    elif controller == "gloo" or not has_mpi:
        claims = _without_mpi(claims)
    if not claims:
        return Launched(launcher=Launcher.MPI if controller == "mpi" else Launcher.NONE)
    chosen, *others = claims
    for other in others:
        if _contradict(chosen, other):
            raise LaunchError(_disagreement(chosen, other, environ))
    size = 1 if chosen.size is None else chosen.size
    if chosen.size is not None and chosen.rank >= size:
        raise LaunchError(
            f"{chosen.describe(environ)}: expected a rank from 0 to {size - 1}; correct or unset it"
        )
    place = _place(chosen, environ) if size > 1 else None
    return Launched(launcher=chosen.launcher, rank=chosen.rank, size=size, place=place)


def singleton_error(mpi_size: int, environ: Mapping[str, str]) -> str | None:
    """**Local.** Return why this process must not run as a job of ``mpi_size`` ranks, or None.

    A wrong launcher (another MPI's mpirun) starts N processes that MPI sees as N jobs of one rank
    each; they would train N separate models and "work".
    """
    claim = next(iter(_claims(environ)), None)
    if claim is None or mpi_size > 1:
        return None
    number, least = claim.size, ""
    if number is None:
        number, least = claim.rank + 1, "at least "
    if number <= 1:
        return None
    variable = claim.variables[-1]
    return (
        f"MPI sees 1 rank, but {variable}={environ[variable]} says that {least}{number} processes "
        "were started: they would train separately. Start the job with the mpirun of the MPI that "
        "mpi4py uses (horovodrun does), with srun --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH), or "
        f"without MPI: horovodrun --gloo, torchrun, srun --mpi=none, all with {CONTROLLER}=gloo"
    )


def _without_mpi(claims: Sequence[_Claim]) -> list[_Claim]:
    """Return the claims that count where MPI shall not be used.

    A Slurm step that merely carries mpirun says nothing about the ranks: it must agree with them.
    """
    mpi = [claim for claim in claims if claim.launcher is Launcher.MPI]
    rest = [claim for claim in claims if claim.launcher is not Launcher.MPI]
    if mpi and rest and rest[0].launcher is Launcher.SLURM and not _agree(mpi[0], rest[0]):
        rest = []
    return rest or mpi


def _claims(environ: Mapping[str, str]) -> list[_Claim]:
    """Return what launchers say about this process, the innermost first.

    Ours takes the variables of the others away when it starts a rank, and torchrun is started by
    the others, never the other way round; RANK is often made of MPI's variables by the job script.
    """
    found = [
        _horovodrun(environ),
        _torch(environ) if "TORCHELASTIC_RUN_ID" in environ else None,
        _mpi(environ),
        _torch(environ) if "TORCHELASTIC_RUN_ID" not in environ else None,
        _slurm(environ),
    ]
    return [claim for claim in found if claim is not None]


def _claim(environ: Mapping[str, str], launcher: Launcher, rank: str, size: str) -> _Claim | None:
    numbers = _number(environ, rank), _number(environ, size)
    if numbers[0] is None or numbers[1] is None:
        return None
    return _Claim(launcher=launcher, rank=numbers[0], size=numbers[1], variables=(rank, size))


def _horovodrun(environ: Mapping[str, str]) -> _Claim | None:
    if not environ.get(MEETING_HOST) or _number(environ, MEETING_PORT) is None:
        return None
    return _claim(environ, Launcher.HOROVODRUN, "HOROVOD_RANK", "HOROVOD_SIZE")


def _torch(environ: Mapping[str, str]) -> _Claim | None:
    by_torchrun = "TORCHELASTIC_RUN_ID" in environ
    launcher = Launcher.TORCHRUN if by_torchrun else Launcher.VARIABLES
    return _claim(environ, launcher, "RANK", "WORLD_SIZE")


def _mpi(environ: Mapping[str, str]) -> _Claim | None:
    for prefix in ("OMPI_COMM_WORLD_", "PMI_", "MV2_COMM_WORLD_"):
        if _number(environ, f"{prefix}SIZE") is None:
            continue
        claim = _claim(environ, Launcher.MPI, f"{prefix}RANK", f"{prefix}SIZE")
        if claim is not None:
            return claim
        size = _number(environ, f"{prefix}SIZE")
        return _Claim(launcher=Launcher.MPI, rank=0, size=size, variables=(f"{prefix}SIZE",))
    rank, step = _number(environ, "PMIX_RANK"), _slurm(environ)
    if rank is None:
        return None
    pmix = _Claim(launcher=Launcher.MPI, rank=rank, size=None, variables=("PMIX_RANK",))
    if step is None or step.rank != rank:
        return pmix
    return replace(pmix, size=step.size, variables=("PMIX_RANK", step.variables[-1]))


def _slurm(environ: Mapping[str, str]) -> _Claim | None:
    """Return what srun says; a batch script and salloc's shell are no step of several tasks."""
    if "SLURM_STEP_ID" not in environ and not _number(environ, "SLURM_PROCID"):
        return None
    step = _claim(environ, Launcher.SLURM, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    return step or _claim(environ, Launcher.SLURM, "SLURM_PROCID", "SLURM_NTASKS")


def _agree(one: _Claim, other: _Claim) -> bool:
    sizes = {claim.size for claim in (one, other) if claim.size is not None}
    return one.rank == other.rank and len(sizes) <= 1


def _contradict(inner: _Claim, outer: _Claim) -> bool:
    """Return whether the two cannot both be true.

    MPI's daemons are a Slurm step of their own. What may start several processes per process of
    another launcher (torchrun on each host) may have more ranks than that, never fewer.
    """
    launchers = {inner.launcher, outer.launcher}
    if launchers == {Launcher.MPI, Launcher.SLURM} or launchers == {
        Launcher.HOROVODRUN,
        Launcher.SLURM,
    }:
        return False
    if outer.launcher is Launcher.SLURM or inner.launcher is Launcher.TORCHRUN:
        least = outer.rank + 1 if outer.size is None else outer.size
        return inner.size is not None and inner.size < least
    return not _agree(inner, outer)


def _disagreement(inner: _Claim, outer: _Claim, environ: Mapping[str, str]) -> str:
    way_out = "unset those of the launcher that did not start it"
    if Launcher.MPI in (inner.launcher, outer.launcher):
        other = inner if outer.launcher is Launcher.MPI else outer
        way_out += f", or set {CONTROLLER} to mpi (MPI's count) or gloo ({other.variables[0]} does)"
    return (
        f"{inner.describe(environ)} and {outer.describe(environ)} disagree about this process: "
        f"{way_out}"
    )


def _place(claim: _Claim, environ: Mapping[str, str]) -> Place | None:
    """Return where the ranks of ``claim`` meet; the user may name host and port.

    Raises:
        LaunchError: The launcher does not say where.
    """
    if claim.launcher is Launcher.MPI:
        return None
    if claim.launcher is Launcher.HOROVODRUN:
        place = Place(host="", port=0, listener=claim.launcher, job="")
    elif claim.launcher is Launcher.SLURM:
        place = _slurm_place(environ)
    else:
        place = _torch_place(claim, environ)
    host = environ.get(MEETING_HOST, "").strip() or place.host
    port = _number(environ, MEETING_PORT) or place.port
    if place.listener is Launcher.TORCHRUN or (host, port) == (place.host, place.port):
        return place
    return Place(host=host, port=port, listener=place.listener, job=place.job)


def _torch_place(claim: _Claim, environ: Mapping[str, str]) -> Place:
    """Return the place of ranks that torch's variables describe.

    Torchrun's agent listens at MASTER_PORT. Elsewhere the script's own ``torch.distributed`` may
    listen there, and does so at any time: the next port is ours.
    """
    host, port = environ.get("MASTER_ADDR", "").strip(), _number(environ, "MASTER_PORT")
    if not host or port is None or not 0 < port <= _LAST_PORT:
        raise LaunchError(
            f"{claim.describe(environ)} without MASTER_ADDR and MASTER_PORT, where the ranks meet: "
            "set both to a host name and a port of rank 0's host, or unset the others"
        )
    run = environ.get("TORCHELASTIC_RUN_ID", "")
    restart = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    job = f"horovod/{run}/{restart}"
    if environ.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true":
        return Place(host=host, port=port, listener=Launcher.TORCHRUN, job=job)
    port += 1 if port < _LAST_PORT else -1
    return Place(host=host, port=port, listener=Launcher.VARIABLES, job=f"{job}/{host}:{port}")


def _slurm_place(environ: Mapping[str, str]) -> Place:
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")
    job = f"{environ.get('SLURM_JOB_ID', '')}.{environ.get('SLURM_STEP_ID', '')}"
    if not (host := first_node(nodes)):
        raise LaunchError(
            f"srun started this process, but SLURM_STEP_NODELIST={nodes!r} names no host where its "
            f"ranks could meet: set {MEETING_HOST} to the host of SLURM_PROCID 0"
        )
    port = FIRST_SLURM_PORT + zlib.crc32(job.encode()) % SLURM_PORTS
    return Place(host=host, port=port, listener=Launcher.SLURM, job=f"slurm/{job}")


def _number(environ: Mapping[str, str], variable: str) -> int | None:
    text = environ.get(variable, "").strip()
    return int(text) if text.isascii() and text.isdecimal() else None
