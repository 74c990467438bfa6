"""Train a small network on scikit-learn's handwritten digits by Keras's ``fit``.

    horovodrun -np 2 python examples/tensorflow/digits_keras.py
    mpirun -np 2 python examples/tensorflow/digits_keras.py --epochs 40 --output checkpoints

A script to start from: the numbered remarks are those of docs/distributed.md. Nothing in here knows
of tuning: HOROVOD_AUTOTUNE=1 HOROVOD_AUTOTUNE_LOG=log.csv does that from outside.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import horovod.tensorflow.keras as hvd
import tensorflow as tf

TEST_IMAGES = 297
Share = tuple[np.ndarray, np.ndarray]


def load_share() -> tuple[Share, Share]:
    """Return this rank's part of the 1,500 images to train on and of the 297 to test on.

    Every rank has equally many, so that all take the same number of steps.
    """
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = (digits.data[order] / 16.0).astype(np.float32)
    labels = digits.target[order].astype(np.int64)

    def share(images: np.ndarray, labels: np.ndarray) -> Share:
        length = len(labels) // hvd.size()
        mine = slice(hvd.rank() * length, (hvd.rank() + 1) * length)
        return images[mine], labels[mine]

    train = share(images[:-TEST_IMAGES], labels[:-TEST_IMAGES])
    return train, share(images[-TEST_IMAGES:], labels[-TEST_IMAGES:])


def make_model() -> tf.keras.Model:
    """Return a network of five layers: ten parameter tensors, 59,018 numbers."""
    layers = [tf.keras.layers.Dense(128, activation="relu") for _ in range(4)]
    return tf.keras.Sequential([tf.keras.Input((64,)), *layers, tf.keras.layers.Dense(10)])


def train(arguments: argparse.Namespace) -> None:
    """Train, test after each epoch, and keep the last model where a folder is given."""
    tf.config.threading.set_intra_op_parallelism_threads(1)  # 1. one rank, one core or one GPU
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    (images, labels), test = load_share()  # 2. every rank has its share of the data
    tf.keras.utils.set_random_seed(arguments.seed)
    model = make_model()
    rate = arguments.lr * hvd.size()  # 4. the learning rate follows the job's batch
    optimizer = hvd.DistributedOptimizer(  # 5. gradients are averaged over all ranks
        tf.keras.optimizers.SGD(rate, momentum=0.9)
    )
    model.compile(
        optimizer,
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,  # compiled steps cannot communicate
    )
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),  # 6. all ranks begin alike
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(rate, warmup_epochs=2, momentum_correction=False),
    ]
    if arguments.output and hvd.rank() == 0:  # 7. one rank speaks and writes
        arguments.output.mkdir(parents=True, exist_ok=True)
        callbacks.append(tf.keras.callbacks.ModelCheckpoint(arguments.output / "model.keras"))
    history = model.fit(
        images,
        labels,
        batch_size=arguments.batch_size,  # 3. the batch is one rank's
        epochs=arguments.epochs,
        validation_data=test,
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0,
    )
    if hvd.rank() == 0:
        print(f"test accuracy {history.history['val_accuracy'][-1]:.1%}", flush=True)


def main() -> None:
    """Run the job on this rank."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=16, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one rank")
    parser.add_argument("--seed", type=int, default=1, help="of the first weights")
    parser.add_argument("--output", type=Path, help="folder for the model of the last epoch")
    arguments = parser.parse_args()
    hvd.init()
    train(arguments)
    hvd.shutdown()


if __name__ == "__main__":
    main()
