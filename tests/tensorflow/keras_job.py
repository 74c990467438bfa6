"""A job with Keras that trains until rank 0's tuner is done: python keras_job.py FOLDER.

Every rank leaves FOLDER/rank-R.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import horovod.tensorflow.keras as hvd
import tensorflow as tf
from horovod.common.objects import broadcast_object

BATCH, STEPS, MOST_EPOCHS = 16, 20, 60


def model() -> Any:
    net = tf.keras.Sequential(
        [
            tf.keras.layers.Input((32,)),
            *(tf.keras.layers.Dense(32, activation="tanh") for _ in range(8)),
            tf.keras.layers.Dense(3),
        ]
    )
    rng = np.random.default_rng(1)
    net.set_weights([rng.normal(size=w.shape, scale=0.2) for w in net.get_weights()])
    return net


class UntilTuned(tf.keras.callbacks.Callback):
    epochs = 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.epochs = epoch + 1
        state = broadcast_object(hvd.autotune.status().state, 0, "state")
        self.model.stop_training = state == "done"


def fit(optimizer: Any, share: slice, epochs: int, callbacks: Any = ()) -> Any:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(STEPS, BATCH, 32)).astype(np.float32)[:, share].reshape(-1, 32)
    net = model()
    net.compile(optimizer, "mse")
    length = len(x) // STEPS
    net.fit(
        x,
        np.tanh(x[:, :3]),
        batch_size=length,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=list(callbacks),
    )
    return net


def main(folder: Path) -> None:
    hvd.init()
    length = BATCH // hvd.size()
    share = slice(hvd.rank() * length, (hvd.rank() + 1) * length)
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    until = UntilTuned()
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.001))
    net = fit(optimizer, share, MOST_EPOCHS, [*callbacks, until])
    right = fit(tf.keras.optimizers.SGD(0.001), slice(None), until.epochs)
    pairs = zip(net.get_weights(), right.get_weights(), strict=True)
    status = hvd.autotune.status()
    content = {
        "difference": max(float(np.abs(ours - whole).max()) for ours, whole in pairs),
        "changes": status.epoch,
        "params": dict(status.params),
        "state": status.state,
        "epochs": until.epochs,
    }
    (folder / f"rank-{hvd.rank()}.json").write_text(json.dumps(content))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
