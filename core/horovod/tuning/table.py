"""What the rest of the runtime knows of ``autotune`` without a job: THE table of parameters."""

from autotune.space import BY_NAME, PARAMETERS, Parameter
from autotune.storage.placeholders import JOB_ID_VARIABLES

__all__ = ["BY_NAME", "JOB_ID_VARIABLES", "PARAMETERS", "Parameter"]
