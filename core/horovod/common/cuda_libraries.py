"""Where the shared libraries are that communicate the memory of GPUs: NCCL, and NVIDIA's compiler.

PyTorch with CUDA brings both, as packages below ``nvidia``. Without them the loader's own search
path counts.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import NamedTuple

from horovod import _engine


class Libraries(NamedTuple):
    """Paths; "" where the loader has to find the library by itself."""

    nccl: str
    nvrtc: str


@functools.cache
def find_libraries() -> Libraries:
    """**Local.** Return where the libraries are that the installed PyTorch uses."""
    folders = _nvidia_folders()
    return Libraries(
        nccl=_first(folders, "libnccl.so.2"),
        nvrtc=_first(folders, "libnvrtc.so.[0-9]*"),
    )


def nccl_version() -> int:
    """**Local.** Return NCCL's version as NCCL says it, e.g. 22809 for 2.28.9; 0 without it."""
    return _engine.nccl_version(find_libraries().nccl)


def cuda_version() -> int:
    """**Local.** Return the newest CUDA that the driver knows, e.g. 13000; 0 without a driver."""
    return _engine.cuda_version()


def _nvidia_folders() -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    return [folder for place in places for folder in sorted(Path(place).glob("*/lib"))]


def _first(folders: list[Path], pattern: str) -> str:
    found = [path for folder in folders for path in sorted(folder.glob(pattern))]
    return str(found[0]) if found else ""
