"""What the user wants of an elastic job, read from the command line and checked."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from horovod.common.launched import CONTROLLER
from horovod.runner.hosts import Hosts
from horovod.runner.options import check_seconds

TIMEOUT = "HOROVOD_ELASTIC_TIMEOUT"
TIMEOUT_SECONDS = 600.0
LONGEST_COOLDOWN_SECONDS = 3600


@dataclass(frozen=True, kw_only=True)
class Elastic:
    """What an elastic job is to be like; it travels as JSON, and holds nothing that is secret.

    Attributes:
        first: Ranks that it wants to begin with.
        least: With fewer it waits.
        most: It never has more; None: as many as there are slots.
        timeout_s: Longest wait for enough of them.
        reset_limit: Rounds after the first one; None: any number.
        slots: Of a found host that does not say how many it has.
        cooldown_s: Shortest and longest time for which a failing host is left out; None: for good.
        script: The command that finds hosts; "": they are ``hosts``.
        hosts: {host: slots}, where they are fixed.
    """

    first: int
    least: int
    most: int | None = None
    timeout_s: float = TIMEOUT_SECONDS
    reset_limit: int | None = None
    slots: int = 1
    cooldown_s: tuple[float, float] | None = None
    script: str = ""
    hosts: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def encode(self) -> str:
        """Return it as text."""
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def decode(text: str) -> Elastic:
        """Return what ``encode`` wrote."""
        fields = json.loads(text)
        cooldown = fields.pop("cooldown_s")
        return Elastic(cooldown_s=tuple(cooldown) if cooldown else None, **fields)


def is_wanted(arguments: Any) -> bool:
    """Return whether the command line asks for an elastic job."""
    names = ("host_discovery_script", "min_num_proc", "max_num_proc")
    return any(getattr(arguments, name) is not None for name in names)


def read(arguments: Any, hosts: Hosts, environ: Mapping[str, str]) -> Elastic:
    """Return what the command line wants.

    Args:
        arguments: Of the command line.
        hosts: Those that it or a queue names; empty: this one.
        environ: Of the job.

    Raises:
        ValueError: Numbers that do not go together, or MPI is asked for; one sentence.
    """
    if environ.get(CONTROLLER, "").strip().lower() == "mpi":
        raise ValueError(
            "--min-np, --max-np and --host-discovery-script: elastic jobs start without MPI, but "
            f"{CONTROLLER}=mpi (--mpi) asks for it"
        )
    script = (arguments.host_discovery_script or "").strip()
    first, least, most = arguments.num_proc, arguments.min_num_proc, arguments.max_num_proc
    if first is None and least is None:
        raise ValueError(
            "-np or --min-np is missing: the number of ranks to begin with, or the least"
        )
    first = least if first is None else first
    least = first if least is None else least
    _check_numbers(first, least, most)
    slots = 1 if arguments.slots is None else arguments.slots
    if slots < 1:
        raise ValueError(f"--slots-per-host {slots}: expected at least 1 slot")
    fixed = {} if script else _fixed(hosts, slots, most or first)
    room = sum(fixed.values())
    if not script and room < first:
        shown = ",".join(f"{name}:{number}" for name, number in fixed.items())
        raise ValueError(f"-np {first}: the hosts have room for {room} ranks ({shown})")
    limit = arguments.reset_limit
    if limit is not None and limit < 0:
        raise ValueError(f"--reset-limit {limit}: expected 0 or more resets")
    return Elastic(
        first=first,
        least=least,
        most=most,
        timeout_s=_timeout(environ),
        reset_limit=limit,
        slots=slots,
        cooldown_s=_cooldown(arguments.cooldown_range),
        script=script,
        hosts=fixed,
    )


def _timeout(environ: Mapping[str, str]) -> float:
    text = environ.get(TIMEOUT, "").strip()
    return float(check_seconds(text, TIMEOUT)) if text else TIMEOUT_SECONDS


def _check_numbers(first: int, least: int, most: int | None) -> None:
    if least < 1:
        raise ValueError(f"--min-np {least}: expected at least 1 rank")
    if most is not None and most < least:
        raise ValueError(f"--max-np {most}: expected at least --min-np, which is {least}")
    if first < least or (most is not None and first > most):
        shown = f"from --min-np {least}" + (f" to --max-np {most}" if most is not None else "")
        raise ValueError(f"-np {first}: expected a number {shown}")


def _fixed(hosts: Hosts, slots: int, here: int) -> dict[str, int]:
    """Return {host: slots} of named hosts, or of this one with ``here`` slots."""
    fixed: dict[str, int] = {}
    for name, number in hosts or [("localhost", here)]:
        fixed[name] = fixed.get(name, 0) + (slots if number is None else number)
    return fixed


def _cooldown(given: Sequence[int] | None) -> tuple[float, float] | None:
    if given is None:
        return None
    shortest, longest = given
    if not 1 <= shortest <= longest <= LONGEST_COOLDOWN_SECONDS:
        raise ValueError(
            f"--blacklist-cooldown-range {shortest} {longest}: expected the shortest and the "
            f"longest time in seconds, from 1 to {LONGEST_COOLDOWN_SECONDS}"
        )
    return float(shortest), float(longest)
