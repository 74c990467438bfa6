"""Not provided: importing this module says so in one sentence."""

raise ImportError(
    "horovod.tensorflow: hvd-autotune provides Horovod's PyTorch API only; "
    "use 'import horovod.torch as hvd', or the original Horovod for TensorFlow"
)
