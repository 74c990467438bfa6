"""What ``horovod.tensorflow.keras`` and ``horovod.keras`` share; no framework is imported here."""
