"""Not available: the services by which Horovod runs on Spark and Ray."""

raise ImportError(
    "horovod.runner.common.service is not available in hvd-autotune: it serves Horovod's Spark and "
    "Ray front ends, which are not here; start jobs by horovodrun, horovod.run, mpirun or srun"
)
