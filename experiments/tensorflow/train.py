"""A Keras script as a user has it, with no line of tuning: python train.py [--stats FILE]."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

import horovod.tensorflow.keras as hvd
import tensorflow as tf

LAYERS, WIDTH, BATCH = 20, 64, 16
STEPS_OF_AN_EPOCH = 50


class StepTimes(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """The moments at which steps end."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.ends.append(time.perf_counter())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--stats", type=Path, help="gets the time of each step in ms")
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    hvd.init()
    tf.keras.utils.set_random_seed(1)
    layers = [tf.keras.layers.Dense(WIDTH, activation="tanh") for _ in range(LAYERS)]
    model = tf.keras.Sequential([tf.keras.Input((WIDTH,)), *layers])
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.01, momentum=0.9))
    model.compile(optimizer, "mse", jit_compile=False)
    rng = np.random.default_rng(hvd.rank())
    x = rng.normal(size=(STEPS_OF_AN_EPOCH * BATCH, WIDTH)).astype(np.float32)
    times = StepTimes()
    model.fit(
        x,
        np.tanh(x[:, ::-1]),
        batch_size=BATCH,
        epochs=options.steps // STEPS_OF_AN_EPOCH,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), times],
        verbose=0,
    )
    if hvd.rank() == 0 and options.stats:
        lengths = 1000 * np.diff(times.ends)
        options.stats.write_text(json.dumps([round(float(each), 3) for each in lengths]))
    hvd.shutdown()


if __name__ == "__main__":
    main()
