"""What scripts written for Horovod ask of its ``horovod.tensorflow.util``."""

from __future__ import annotations

import tensorflow as tf


def _executing_eagerly() -> bool:
    """**Local.** Return whether operations run at once, not in a graph."""
    return bool(tf.executing_eagerly())
