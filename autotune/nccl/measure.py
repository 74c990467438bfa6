"""A helper of the probe: one rank of one communicator with NCCL's settings of its environment.

It is run as a program, with the standard library alone, and talks in lines:

::

    probe                             helper
      root                        ->               (to the helper of rank 0)
                                  <-  id HEX
      begin HEX                   ->
                                  <-  ready
      time BYTES COUNT            ->
                                  <-  us NUMBER    (of one operation)
      (end of input: it leaves at once)

Anything that fails is a line ``failed REASON``, and it leaves.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

SUM, FLOAT32 = 0, 7
"""NCCL's numbers."""


class _Id(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char * 128),)


class Helper:
    """The GPU and the communicator.

    Args:
        gpu: Number of the GPU, as CUDA numbers those of this process.
        rank, size: In the communicator.
        most_bytes: Of the longest operation.
        nccl: Path of the library.
    """

    def __init__(self, gpu: int, rank: int, size: int, most_bytes: int, nccl: str) -> None:
        self._rank, self._size, self._most_bytes = rank, size, most_bytes
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._nccl = ctypes.CDLL(nccl or "libnccl.so.2")
        self._nccl.ncclGetErrorString.restype = ctypes.c_char_p
        device, count, self._context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
        self._do("cuInit", 0)
        self._do("cuDeviceGetCount", ctypes.byref(count))
        self._do("cuDeviceGet", ctypes.byref(device), gpu % max(1, count.value))
        self._do("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        self._do("cuCtxSetCurrent", self._context)
        self._stream, self._communicator = ctypes.c_void_p(), ctypes.c_void_p()
        self._memory = ctypes.c_uint64()
        self._events = [ctypes.c_void_p(), ctypes.c_void_p()]

    def root(self) -> str:
        """Return by what the ranks find each other."""
        found = _Id()
        self._ask("ncclGetUniqueId", ctypes.byref(found))
        return bytes(found).hex()

    def begin(self, text: str) -> None:
        """Make the communicator."""
        found = _Id.from_buffer_copy(bytes.fromhex(text))
        most_bytes = ctypes.c_size_t(self._most_bytes)
        self._do("cuMemAlloc_v2", ctypes.byref(self._memory), most_bytes)
        self._do("cuMemsetD8_v2", self._memory, ctypes.c_ubyte(0), most_bytes)
        self._do("cuStreamCreate", ctypes.byref(self._stream), 1)
        for event in self._events:
            self._do("cuEventCreate", ctypes.byref(event), 0)
        self._ask(
            "ncclCommInitRank", ctypes.byref(self._communicator), self._size, found, self._rank
        )
        self.time(self._most_bytes, 1)  # connects

    def time(self, count_bytes: int, count: int) -> float:
        """Return the time of one of ``count`` sums of so many bytes, in us.

        One more goes before them, in which the ranks wait for each other.
        """
        for number in range(count + 1):
            if number == 1:
                self._do("cuEventRecord", self._events[0], self._stream)
            self._ask(
                "ncclAllReduce",
                self._memory,
                self._memory,
                ctypes.c_size_t(count_bytes // 4),
                FLOAT32,
                SUM,
                self._communicator,
                self._stream,
            )
        self._do("cuEventRecord", self._events[1], self._stream)
        self._do("cuEventSynchronize", self._events[1])
        elapsed = ctypes.c_float()
        self._do("cuEventElapsedTime", ctypes.byref(elapsed), *self._events)
        return 1000 * elapsed.value / count

    def _do(self, name: str, *arguments: Any) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name}: CUDA error {code}")

    def _ask(self, name: str, *arguments: Any) -> None:
        code = getattr(self._nccl, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name}: {self._nccl.ncclGetErrorString(code).decode()}")


def serve(helper: Helper) -> None:
    """Do as the lines of standard input say, until they end."""
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "root":
            _say("id", helper.root())
        elif word == "begin":
            helper.begin(rest[0])
            _say("ready")
        elif word == "time":
            _say("us", helper.time(int(rest[0]), int(rest[1])))


def _say(*words: object) -> None:
    print(*words, flush=True)


def main() -> None:
    """Take gpu, rank, size, most bytes and NCCL's path from the command line."""
    gpu, rank, size, most_bytes = map(int, sys.argv[1:5])
    try:
        serve(Helper(gpu, rank, size, most_bytes, sys.argv[5]))
    except Exception as error:
        _say("failed", str(error).replace("\n", " "))
    os._exit(0)  # the driver frees what is left; NCCL's own end would wait for the others


if __name__ == "__main__":
    main()
