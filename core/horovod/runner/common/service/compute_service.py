"""Horovod's service for tf.data: names that say they are not here."""

from horovod.runner.absent import absent_names

__getattr__ = absent_names(
    __name__,
    ("ComputeClient", "ComputeService"),
    "Horovod's service for tf.data is not here; start tf.data.experimental.service yourself, or "
    "let each rank read its own shard",
)
