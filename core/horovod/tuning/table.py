"""What the rest of the runtime knows of ``autotune`` without a job: its tables of parameters."""

from autotune.nccl.offer import offered as offered_nccl_tuner
from autotune.space import BY_NAME, PARAMETERS, Parameter
from autotune.storage.placeholders import JOB_ID_VARIABLES
from autotune.tables.further import COMPRESSION
from autotune.tables.nccl import NCCL_PARAMETERS

ENGINE_PARAMETERS: tuple[Parameter, ...] = (*PARAMETERS, *NCCL_PARAMETERS, *COMPRESSION.values())
"""Every parameter that the engine knows."""
EXPLORE = "HOROVOD_AUTOTUNE_EXPLORE"
"""Names what is explored by the user's word only."""

__all__ = [
    "BY_NAME",
    "ENGINE_PARAMETERS",
    "EXPLORE",
    "JOB_ID_VARIABLES",
    "PARAMETERS",
    "Parameter",
    "offered_nccl_tuner",
]
