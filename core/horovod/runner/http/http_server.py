"""Where ranks meet that a launcher of one's own has started, under Horovod's names.

::

    server = RendezvousServer()
    port = server.start()
    server.init(get_host_assignments(parse_hosts("a:2,b:2"), 4))

Each rank then finds HOROVOD_GLOO_RENDEZVOUS_ADDR and _PORT, HOROVOD_RANK and HOROVOD_SIZE in its
environment (``gloo_run.create_run_env_vars`` and ``create_slot_env_vars`` make them), and
``hvd.init()`` joins them there. What listens speaks no HTTP: it is this package's own meeting point
(``common.meeting``), proven by HOROVOD_SECRET_KEY where the launcher and all ranks have it.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Sequence

from horovod.common import secret
from horovod.common.meeting import MeetingPoint
from horovod.runner.absent import absent, absent_names
from horovod.runner.common.util.hosts import SlotInfo

logger = logging.getLogger("horovod")

RendezvousHandler = absent(
    __name__, "RendezvousHandler", "ranks meet without HTTP, so that nothing handles requests"
)

__getattr__ = absent_names(
    __name__,
    ("KVStoreHandler", "KVStoreHTTPServer", "KVStoreServer"),
    "nothing is kept in a store over HTTP; horovod.run calls a function on every rank and returns "
    "the results",
)


class RendezvousHTTPServer:
    """A port that is kept from the start, and at which ranks meet from ``init`` on.

    Args:
        addr: (address or "" for all of this host, port or 0 for any).
        handler: Only ``RendezvousHandler``.
        verbose: Log when a plan comes into force.

    Attributes:
        server_address: (address, port).

    Raises:
        NotImplementedError: Another handler: jobs that grow and shrink have one in Horovod.
        OSError: The port is taken.
    """

    def __init__(
        self, addr: tuple[str, int], handler: type = RendezvousHandler, verbose: int = 0
    ) -> None:
        if handler is not RendezvousHandler:
            raise NotImplementedError(
                f"{__name__}: {handler.__name__} would handle requests over HTTP, which ranks do "
                "not make here: start the server without a handler"
            )
        self._verbose = verbose
        self._point: MeetingPoint | None = None
        self._ended = threading.Event()
        dual = not addr[0] and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual or ":" in addr[0] else socket.AF_INET
        self._kept = socket.socket(family, socket.SOCK_STREAM)  # bound, but nobody can connect
        try:
            if dual:
                self._kept.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            self._kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._kept.bind(addr)
        except OSError:
            self._kept.close()
            raise
        self.server_address: tuple[str, int] = (addr[0], self._kept.getsockname()[1])

    def init(self, host_alloc_plan: Sequence[SlotInfo]) -> None:
        """**Local.** Let the ranks of a plan meet; those of an earlier one no longer do.

        Args:
            host_alloc_plan: One place per rank, as of ``hosts.get_host_assignments``.

        Raises:
            OSError: Another process has taken the port.
        """
        self._close_point()
        host, port = self.server_address
        key = os.environ.get(secret.ENV, "").strip()
        self._point = MeetingPoint(len(host_alloc_plan), key, host=host, port=port)
        if self._verbose:
            logger.info("%d ranks meet at port %d", len(host_alloc_plan), port)

    def serve_forever(self) -> None:
        """**Local.** Return after ``shutdown``."""
        self._ended.wait()

    def shutdown(self) -> None:
        """**Local.** End: nobody meets here any more."""
        self._close_point()
        self._ended.set()

    def server_close(self) -> None:
        """**Local.** Let go of the port."""
        self._kept.close()

    def _close_point(self) -> None:
        if self._point is not None:
            self._point.close()
            self._point = None


class RendezvousServer:
    """The place where the ranks of a job meet.

    Args:
        verbose: Log what happens.
    """

    def __init__(self, verbose: int = 0) -> None:
        self._httpd: RendezvousHTTPServer | None = None
        self._verbose = verbose

    def start(self, handler_cls: type = RendezvousHandler) -> int:
        """**Local.** Keep a port of this host and return it.

        Args:
            handler_cls: Only ``RendezvousHandler``.

        Raises:
            NotImplementedError: Another handler.
        """
        self._httpd = RendezvousHTTPServer(("", 0), handler_cls, self._verbose)
        return self._httpd.server_address[1]

    def init(self, host_alloc_plan: Sequence[SlotInfo]) -> None:
        """**Local.** Let the ranks of a plan meet, instead of those of an earlier one.

        Args:
            host_alloc_plan: As of ``RendezvousHTTPServer.init``.

        Raises:
            RuntimeError: It has not been started.
        """
        if self._httpd is None:
            raise RuntimeError("RendezvousServer.init(): call start() first")
        self._httpd.init(host_alloc_plan)

    def stop(self) -> None:
        """**Local.** End, and let go of the port."""
        if self._httpd is not None:
            self._httpd.shutdown()
            self._httpd.server_close()
            self._httpd = None
