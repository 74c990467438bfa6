"""``hvd.autotune``: what a script may say to the tuner and ask it. Nothing here communicates."""

from horovod.tuning.autotuning import Status, params, pause, resume, status, step

__all__ = ["Status", "params", "pause", "resume", "status", "step"]
