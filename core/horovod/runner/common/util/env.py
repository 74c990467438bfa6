"""What the environment says of a process."""

from __future__ import annotations

import os
import re

from horovod.runner.rank_process import RANK_VARIABLES

SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")


def is_exportable(v: str) -> bool:
    """**Local.** Return whether a variable of the name ``v`` can go to other hosts."""
    return not re.fullmatch(r"BASH_FUNC_.*|OLDPWD", v)


def get_env_rank_and_size() -> tuple[int, int]:
    """**Local.** Return (rank, size) as Horovod's or MPI's launcher says them, else (0, 1)."""
    found = [
        next((int(text) for name in names if (text := os.environ.get(name, "")).isdecimal()), None)
        for names in (("HOROVOD_RANK", *RANK_VARIABLES), ("HOROVOD_SIZE", *SIZE_VARIABLES))
    ]
    rank, size = found
    return (0, 1) if rank is None or size is None else (rank, size)
