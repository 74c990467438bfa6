"""What the rest of the runtime knows of ``autotune`` without a job: its tables of parameters."""

from autotune.nccl.offer import offered as offered_nccl_tuner
from autotune.space import BY_NAME, PARAMETERS, Parameter
from autotune.storage.placeholders import JOB_ID_VARIABLES
from autotune.tables.nccl import NCCL_PARAMETERS

__all__ = [
    "BY_NAME",
    "JOB_ID_VARIABLES",
    "NCCL_PARAMETERS",
    "PARAMETERS",
    "Parameter",
    "offered_nccl_tuner",
]
