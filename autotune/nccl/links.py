"""Over what the GPUs of a job talk to each other, as far as it decides whether NCCL is explored."""

from __future__ import annotations

import ctypes
import glob
from collections.abc import Mapping
from typing import Literal

Link = Literal["none", "nvlink", "pci", "shared memory", "sockets", "network"]
"""Of the slowest pair: no GPU here; NVLink; PCI Express; memory of the host; sockets of one host;
a network between hosts."""

_MOST_LINKS = 18
_ENABLED = 1


def link_of(environ: Mapping[str, str], *, is_one_host: bool) -> Link:
    """**Local.** Return the class of link of a job whose ranks are on one host, or on several."""
    if not glob.glob("/proc/driver/nvidia/gpus/*"):
        return "none"
    if not is_one_host:
        return "network"
    if _is_on(environ, "NCCL_P2P_DISABLE") or environ.get("NCCL_P2P_LEVEL", "") in ("0", "LOC"):
        return "sockets" if _is_on(environ, "NCCL_SHM_DISABLE") else "shared memory"
    return "nvlink" if has_nvlink() else "pci"


def can_matter(link: Link) -> bool:
    """Return whether other choices than NCCL's own can pay over such a link.

    Over NVLink nothing above the noise was found (``experiments/nccl``), and trials cost time.
    """
    return link not in ("none", "nvlink")


def has_nvlink() -> bool:
    """**Local.** Return whether the first GPU of this host has an NVLink that is up, by NVML."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2() != 0:
            return False
        device, state = ctypes.c_void_p(), ctypes.c_uint()
        if nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) != 0:
            return False
        for link in range(_MOST_LINKS):
            code = nvml.nvmlDeviceGetNvLinkState(device, link, ctypes.byref(state))
            if code == 0 and state.value == _ENABLED:
                return True
    except (OSError, AttributeError):
        pass
    return False


def gpu_name() -> str:
    """**Local.** Return what the driver calls the first GPU of this host."""
    for path in sorted(glob.glob("/proc/driver/nvidia/gpus/*/information")):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                found = [line.partition(":")[2].strip() for line in file if "Model" in line]
        except OSError:
            continue
        if found:
            return found[0]
    return "unknown GPU"


def _is_on(environ: Mapping[str, str], name: str) -> bool:
    return environ.get(name, "").strip() not in ("", "0")
