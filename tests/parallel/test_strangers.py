"""A job that starts while others are at its ports, and ranks that are not of one build."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import horovod
import horovod.torch as hvd
from horovod import _engine
from tiers.between_ranks import WITHOUT_MPI

Restart = Callable[[dict[str, str]], None]

SAID = [
    b"",
    b"\xff\xff\xff\x3f\x00",  # a frame of a gibibyte
    struct.pack("<IB", 2**32 - 1, 0),
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    os.urandom(100_000),
]


def works() -> None:
    assert torch.equal(hvd.allreduce(torch.ones(3), op=hvd.Sum), torch.full((3,), 1.0 * hvd.size()))


class Strangers:
    """Who finds the port and the socket's name of a rendezvous, and stays until ``leave``."""

    def __init__(self) -> None:
        self.ports: list[str] = []
        self._sockets: list[socket.socket] = []
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def come(self, port: str, name: str = "") -> None:
        """Come to a TCP port, and to the abstract Unix socket ``name`` where there is one."""
        self.ports.append(port)
        places: list[tuple[int, object]] = [(socket.AF_INET, ("127.0.0.1", int(port)))]
        if name:
            places.append((socket.AF_UNIX, "\0" + name))
        for said in SAID:
            for family, place in places:
                stranger = socket.socket(family)
                stranger.connect(place)
                with suppress(OSError):
                    stranger.setblocking(False)
                    stranger.send(said)
                self._sockets.append(stranger)
        self._threads.append(threading.Thread(target=self._scan, args=(int(port),)))
        self._threads[-1].start()

    def _scan(self, port: int) -> None:
        while not self._over.is_set():
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            if shutil.which("curl"):
                words = ["curl", "-s", "-m", "1", f"http://127.0.0.1:{port}/"]
                # Without the sanitizers' libraries, under which it hangs.
                environ = {k: text for k, text in os.environ.items() if k != "LD_PRELOAD"}
                with suppress(subprocess.TimeoutExpired):
                    subprocess.run(
                        words, stdout=subprocess.DEVNULL, check=False, timeout=10, env=environ
                    )

    def leave(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        for stranger in self._sockets:
            stranger.close()


@pytest.mark.usefixtures("two_ranks")
def test_port_scanners_and_web_clients_change_nothing(
    restart: Restart, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    strangers = Strangers()

    def rendezvous(*arguments: Any) -> _engine.Rendezvous:
        made = real(*arguments)
        name, port, *_ = made.address.split()
        strangers.come(port, name)
        return made

    def listener(own: int, key: bytes, interfaces: str = "") -> _engine.TcpListener:
        made = real_listener(own, key, interfaces)
        strangers.come(made.address.split()[0])
        return made

    real, real_listener = _engine.Rendezvous, _engine.TcpListener
    try:
        with monkeypatch.context() as patch:
            patch.setattr(_engine, "Rendezvous", rendezvous)
            patch.setattr(_engine, "TcpListener", listener)
            for _ in range(2):
                restart({})
                works()
    finally:
        strangers.leave()
    assert len(strangers.ports) == 2 * ((rank == 0) + WITHOUT_MPI)


@pytest.mark.usefixtures("two_ranks")
def test_no_shared_memory_has_a_name(restart: Restart) -> None:
    restart({})
    works()
    pids = hvd.allgather_object(os.getpid())
    assert not [name for name in os.listdir("/dev/shm") if any(str(pid) in name for pid in pids)]
    maps = Path("/proc/self/maps").read_text()
    assert "/dev/shm/hvd" not in maps
    assert "/memfd:hvd-autotune (deleted)" in maps


@pytest.mark.usefixtures("two_ranks")
def test_ranks_of_two_versions_learn_it_together(
    restart: Restart, monkeypatch: pytest.MonkeyPatch, rank: int, size: int
) -> None:
    with monkeypatch.context() as patch:
        if rank == size - 1:
            patch.setattr(horovod, "__version__", "0.1")
        with pytest.raises(ValueError, match=rf"hvd-autotune 0\.1 on rank {size - 1};") as caught:
            restart({})
    assert f"hvd-autotune {horovod.__version__} on rank" in str(caught.value)
    assert not hvd.is_initialized()


def test_ranks_with_a_secret_in_common_work(restart: Restart) -> None:
    restart({"HOROVOD_SECRET_KEY": "0123456789abcdef0123456789abcdef"})
    works()


@pytest.mark.usefixtures("two_ranks")
def test_ranks_with_different_secrets_learn_it_together(restart: Restart, rank: int) -> None:
    mine = f"0123456789abcdef{rank}"
    with pytest.raises(ValueError, match="HOROVOD_SECRET_KEY must be the same") as caught:
        restart({"HOROVOD_SECRET_KEY": mine})
    assert "0123456789abcdef" not in str(caught.value)
