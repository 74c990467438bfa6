"""Names that scripts written for Horovod import."""

from __future__ import annotations

import tensorflow as tf
from horovod.tensorflow.util import _executing_eagerly


def test_eager_mode_is_told_from_a_function() -> None:
    seen = []

    @tf.function
    def traced() -> None:
        seen.append(_executing_eagerly())

    traced()
    assert _executing_eagerly()
    assert seen == [False]
