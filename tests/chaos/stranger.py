"""Talks to ports as strangers do: stranger.py ADDRESS PORT ...; nothing it does may matter."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time

SAYINGS = (b"", b"GET / HTTP/1.0\r\n\r\n", b"\xff\xff\xff\xff\x00", b"\x05\x00\x00\x00\x00hello")


def main(address: str, ports: list[int]) -> None:
    kept = []
    for port in ports:
        for saying in (*SAYINGS, os.urandom(2000)):
            with contextlib.suppress(OSError):
                caller = socket.create_connection((address, port), timeout=2)
                caller.sendall(saying)
                kept.append(caller)
                if len(kept) % 2:
                    caller.close()
    time.sleep(3)


if __name__ == "__main__":
    main(sys.argv[1], [int(word) for word in sys.argv[2:]])
