"""How the ranks of a job without MPI find each other, by whatever started them.

==============================  ===============================  ================================
started by                      who listens, where               the key that ranks prove to know
==============================  ===============================  ================================
horovodrun --gloo               the launcher                     made by the launcher
torchrun                        rank 0, any port; it leaves the  drawn by rank 0, left there, too
                                address in the agent's store
RANK, MASTER_ADDR, MASTER_PORT  rank 0, at the next port         HOROVOD_SECRET_KEY, else only
srun                            rank 0's node, a port made of    what tells the job from another
                                the numbers of job and step      one: nothing that is secret
==============================  ===============================  ================================
"""

from __future__ import annotations

import json
import math
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from horovod.common import interfaces, launched, secret, tcp_world
from horovod.common.launched import Launched, Launcher, LaunchError, Place
from horovod.common.meeting import MeetingPoint
from horovod.common.tcp_world import MeetingError, TcpWorld

TIMEOUT = "HOROVOD_GLOO_TIMEOUT_SECONDS"
INTERFACES = "HOROVOD_GLOO_IFACE"
TIMEOUT_SECONDS = 600.0
"""How long ranks wait for each other where no launcher ends them when one has died."""
_RETRY_SECONDS = 0.2
_CONNECT_SECONDS = 10.0
_STORE_SECONDS = 24 * 3600.0


class Store(Protocol):
    """A key-value store that all ranks reach, such as ``torch.distributed.Store``."""

    def set(self, key: str, value: str, /) -> None:
        """Put ``value`` in, instead of an earlier one."""

    def get(self, key: str, /) -> bytes:
        """Return the value of ``key``; waits for it."""


OpenStore = Callable[[str, int, float], Store]
"""Connects to the store at (host, port); the last is the longest wait for a value, in seconds."""


def join(
    found: Launched,
    environ: Mapping[str, str],
    open_store: OpenStore | None,
    say: Callable[[str], object],
) -> TcpWorld:
    """Return the world of all ranks of the job. **Collective.**

    Args:
        found: How this process was started, without MPI and as one of several.
        environ: Its environment.
        open_store: Of the front end; None: there is none.
        say: Gets a line now and then, while others are waited for.

    Raises:
        LaunchError: The environment or the port is wrong.
        MeetingError: The ranks do not come together.
    """
    place = found.place
    if place is None:
        raise LaunchError(f"{found.launcher} has not said where the ranks meet")
    seconds = _timeout(environ, place)
    key = environ.get(secret.ENV, "").strip()
    names = [name.strip() for name in environ.get(INTERFACES, "").split(",") if name.strip()]
    deadline = math.inf if seconds is None else time.monotonic() + seconds

    def meet(host: str, port: int, key: str, point: MeetingPoint | None = None) -> TcpWorld:
        left = None if seconds is None else max(0.0, deadline - time.monotonic())
        try:
            return tcp_world.meet(found.rank, found.size, host, port, key, left, say, point)
        except BaseException:
            if point is not None:
                point.close()
            raise

    if place.listener is Launcher.HOROVODRUN:
        return meet(place.host, place.port, key)
    if place.listener is not Launcher.TORCHRUN:
        key = key or place.job
        point = _listen(found.size, key, place) if found.rank == 0 else None
        return meet("127.0.0.1" if point else place.host, place.port, key, point)
    if open_store is None:
        raise LaunchError("torchrun starts jobs of horovod.torch only")
    store = open_store(place.host, place.port, seconds or _STORE_SECONDS)
    if found.rank == 0:
        drawn = secrets.token_hex(32)
        point = MeetingPoint(found.size, key + drawn)
        addresses = _addresses(place.host, names)
        store.set(place.job, json.dumps([",".join(addresses), point.port, drawn]))
        return meet("127.0.0.1", point.port, key + drawn, point)
    host, port, drawn = _look_up(store, place.job, deadline)
    return meet(host, port, key + drawn)


def _timeout(environ: Mapping[str, str], place: Place) -> float | None:
    text = environ.get(TIMEOUT, "").strip()
    if not text:
        watched = place.listener in (Launcher.HOROVODRUN, Launcher.TORCHRUN)
        return None if watched else TIMEOUT_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise LaunchError(f"{TIMEOUT}: expected a positive number of seconds, got {text!r}")
    return seconds


def _listen(size: int, key: str, place: Place) -> MeetingPoint:
    host = "127.0.0.1" if interfaces.is_loopback(place.host) else ""
    try:
        return MeetingPoint(size, key, host=host, port=place.port)
    except OSError as error:
        raise LaunchError(
            f"rank 0 cannot listen at port {place.port}, where the ranks meet ({error}): another "
            f"job may do so; set {launched.MEETING_PORT} to a free port, the same on all ranks"
        ) from None


def _addresses(store_host: str, names: list[str]) -> list[str]:
    """Return the addresses by which the other ranks may reach this one, the likely ones first.

    Where the way to the store's host leads only to ourselves there may be no other host.
    """
    if names:
        return [interfaces.address_towards(store_host, names)]
    likely = interfaces.address_towards(store_host)
    return list(dict.fromkeys([likely, *interfaces.all_addresses()]))


def _look_up(store: Store, key: str, deadline: float) -> tuple[str, int, str]:
    """Return what rank 0 has left: (addresses, port, key).

    A job that torchrun began anew may find what the last one left, until its own rank 0 is there:
    nobody listens at that place.

    Raises:
        MeetingError: Nothing that leads to rank 0 until ``deadline``.
    """
    while True:
        try:
            host, port, drawn = json.loads(store.get(key))
        except RuntimeError as error:
            raise MeetingError(f"rank 0 has left no address in torchrun's store: {error}") from None
        reachable = next((name for name in host.split(",") if _is_there(name, port)), None)
        if reachable is not None:
            return reachable, port, drawn
        if time.monotonic() > deadline:
            raise MeetingError(f"rank 0 does not listen at any of {host}, port {port}")
        time.sleep(_RETRY_SECONDS)


def _is_there(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), _CONNECT_SECONDS).close()
    except OSError:
        return False
    return True
