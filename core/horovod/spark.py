"""Not provided: importing this module says so in one sentence."""

raise ImportError(
    "horovod.spark: hvd-autotune provides Horovod's PyTorch API only; start jobs with "
    "'horovodrun', mpirun or horovod.run(), or use the original Horovod for Spark"
)
