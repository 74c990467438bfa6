"""Jobs of whole processes: python job.py KIND FOLDER; every rank leaves what it saw in FOLDER.

epochs    trains by calls of which each runs a whole epoch in TensorFlow, until the tuner is done
steps     the same by a call for each step
endless   trains until a rank is killed, and notes the error
unequal   every rank does one step more than the one before, and ends
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import horovod.tensorflow as hvd
import tensorflow as tf

TENSORS = 12
STEPS = 200
"""In one epoch."""


def make_step() -> Callable[[], tf.Tensor]:
    weights = [tf.Variable(tf.ones([1000 + i])) for i in range(TENSORS)]
    others = tf.random.stateless_uniform([60, 60], (1, 2))

    def step() -> tf.Tensor:
        with tf.control_dependencies([tf.linalg.matmul(others, others)]):
            gradients = [weight * 0.5 for weight in weights]
        for i, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
            reduced = hvd.allreduce(gradient, name=f"gradient.{i}")
            weight.assign_sub(0.001 * reduced)
        return tf.reduce_sum(weights[0])

    return step


def tuned(run: Callable[[], object]) -> str:
    """Call ``run`` until rank 0 has tuned, on all ranks equally often."""
    deadline = time.monotonic() + 90
    while True:
        run()
        left = time.monotonic() < deadline
        state = hvd.autotune.status().state if left else "too late"
        going_on = hvd.rank() == 0 and state not in ("done", "lost", "off", "too late")
        if int(hvd.broadcast(tf.constant(int(going_on)), 0, name="going on")) == 0:
            return state


def epochs() -> str:
    step = make_step()

    @tf.function
    def epoch() -> tf.Tensor:
        last = tf.constant(0.0)
        for _ in tf.range(STEPS):
            last = step()
        return last

    return tuned(epoch)


def steps() -> str:
    step = tf.function(make_step(), autograph=False)

    def several() -> None:
        for _ in range(STEPS):
            step()

    return tuned(several)


def endless() -> str:
    step = tf.function(make_step(), autograph=False)
    step()
    (FOLDER / f"pid-{hvd.rank()}").write_text(str(os.getpid()))
    try:
        while True:
            step()
    except tf.errors.FailedPreconditionError as error:
        return str(error.message)


def unequal() -> str:
    step = tf.function(make_step(), autograph=False)
    for _ in range(hvd.rank() + 1):
        try:
            step()
        except tf.errors.FailedPreconditionError as error:
            return str(error.message)
    return "through"


if __name__ == "__main__":
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    KIND, FOLDER = sys.argv[1], Path(sys.argv[2])
    hvd.init()
    RANK = hvd.rank()
    text = {each.__name__: each for each in (epochs, steps, endless, unequal)}[KIND]()
    (FOLDER / f"rank-{RANK}").write_text(text)
