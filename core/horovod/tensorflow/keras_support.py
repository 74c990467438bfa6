"""Keras's optimizers on TensorFlow are served."""

from __future__ import annotations

from horovod._keras.support import Reduction, Support, register
from horovod.common.gradients import Options
from horovod.tensorflow import gradients
from horovod.tensorflow.tracing import as_it_stands


def _make_reduction(options: Options, number: int) -> Reduction:
    return gradients.Reduction(options, f"optimizer.{number}", "hvd.DistributedOptimizer")


register(Support(name="tensorflow", make_reduction=_make_reduction, entry=as_it_stands))
