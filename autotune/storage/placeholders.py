"""``{job_id}`` and ``{host}`` in the paths of logs, so that the jobs of a queue do not collide."""

from __future__ import annotations

import re
from collections.abc import Mapping

from autotune.errors import LogError

JOB_ID_VARIABLES = (
    "SLURM_JOB_ID",
    "PBS_JOBID",
    "LSB_JOBID",
    "COBALT_JOBID",
    "FLUX_JOB_ID",
    "PJM_JOBID",
    "JOB_ID",
)
"""What queues call their job: Slurm, PBS, LSF, Cobalt, Flux, Fujitsu TCS, Grid Engine."""


def expand(path: str, what: str, environ: Mapping[str, str], *, host: str) -> str:
    """Return ``path`` with ``{job_id}`` and ``{host}`` replaced; other text stays as it is.

    Characters that do not belong into a file name become ``_``.

    Args:
        path: What the user gave.
        what: The environment variable, for the message.
        environ: Where the queue's variables are.
        host: Host name of rank 0.

    Raises:
        LogError: No queue says what the job's id is.
    """
    if "{job_id}" in path:
        path = path.replace("{job_id}", _job_id(path, what, environ))
    return path.replace("{host}", _file_name(host))


def _job_id(path: str, what: str, environ: Mapping[str, str]) -> str:
    for name in JOB_ID_VARIABLES:
        text = environ.get(name, "").strip()
        if text:
            return _file_name(text)
    raise LogError(
        f"{what}={path}: {{job_id}} is not known: expected one of {', '.join(JOB_ID_VARIABLES)} "
        "from the queue; set one of them or name the file without {job_id}"
    )


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.-]", "_", text)
