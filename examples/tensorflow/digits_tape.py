"""Train a small network on scikit-learn's handwritten digits by a loop of one's own.

    horovodrun -np 2 python examples/tensorflow/digits_tape.py
    mpirun -np 2 python examples/tensorflow/digits_tape.py --epochs 40 --output checkpoints

A script to start from: the numbered remarks are the eight steps of docs/distributed.md. Nothing in
here knows of tuning: HOROVOD_AUTOTUNE=1 HOROVOD_AUTOTUNE_LOG=log.csv does that from outside.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import horovod.tensorflow as hvd
import tensorflow as tf

TEST_IMAGES = 297


def load_share() -> tuple[tf.data.Dataset, tf.data.Dataset]:
    """Return this rank's part of the 1,500 images to train on and of the 297 to test on.

    Every rank has equally many, so that all take the same number of steps.
    """
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = (digits.data[order] / 16.0).astype(np.float32)
    labels = digits.target[order].astype(np.int64)

    def share(images: np.ndarray, labels: np.ndarray) -> tf.data.Dataset:
        length = len(labels) // hvd.size()
        mine = slice(hvd.rank() * length, (hvd.rank() + 1) * length)
        return tf.data.Dataset.from_tensor_slices((images[mine], labels[mine]))

    train = share(images[:-TEST_IMAGES], labels[:-TEST_IMAGES])
    return train, share(images[-TEST_IMAGES:], labels[-TEST_IMAGES:])


def make_model() -> tf.keras.Model:
    """Return a network of five layers: ten parameter tensors, 59,018 numbers."""
    layers = [tf.keras.layers.Dense(128, activation="relu") for _ in range(4)]
    return tf.keras.Sequential([tf.keras.Input((64,)), *layers, tf.keras.layers.Dense(10)])


def evaluate(model: tf.keras.Model, test: tf.data.Dataset) -> float:
    """Return the share of test images that all ranks together classify right."""
    hits = seen = 0
    for images, labels in test.batch(64):
        hits += int(tf.reduce_sum(tf.cast(tf.argmax(model(images), axis=1) == labels, tf.int64)))
        seen += len(labels)
    right, all_seen = hvd.allreduce(tf.constant([hits, seen]), op=hvd.Sum, name="test_counts")
    return float(right / all_seen)


def train(arguments: argparse.Namespace) -> None:
    """Train, test after each epoch, and keep a checkpoint where a folder is given."""
    tf.config.threading.set_intra_op_parallelism_threads(1)  # 1. one rank, one core or one GPU
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    train_set, test_set = load_share()  # 2. every rank has its share of the data
    batches = train_set.shuffle(2000, seed=arguments.seed).batch(  # 3. the batch is one rank's
        arguments.batch_size, drop_remainder=True
    )

    tf.keras.utils.set_random_seed(arguments.seed)
    model = make_model()
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = tf.keras.optimizers.SGD(  # 4. the learning rate follows the job's batch
        arguments.lr * hvd.size(), momentum=0.9
    )
    optimizer.build(model.trainable_variables)

    epoch = tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, epoch=epoch)
    manager = None
    if arguments.output and hvd.rank() == 0:
        manager = tf.train.CheckpointManager(checkpoint, arguments.output, max_to_keep=1)
        checkpoint.restore(manager.latest_checkpoint)  # 8. a restarted job goes on
    hvd.broadcast_variables(  # 6. all ranks begin alike
        [*model.weights, *optimizer.variables, epoch], root_rank=0
    )

    @tf.function
    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape)  # 5. gradients are averaged over all ranks
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    while int(epoch) < arguments.epochs:
        for images, labels in batches:
            step(images, labels)
        epoch.assign_add(1)
        accuracy = evaluate(model, test_set)
        if hvd.rank() == 0:  # 7. one rank speaks and writes
            print(f"epoch {int(epoch):3}: test accuracy {accuracy:.1%}", flush=True)
        if manager:
            manager.save()


def main() -> None:
    """Run the job on this rank."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=16, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one rank")
    parser.add_argument("--seed", type=int, default=1, help="of the first weights")
    parser.add_argument("--output", type=Path, help="folder for a checkpoint per epoch")
    arguments = parser.parse_args()
    hvd.init()
    train(arguments)
    hvd.shutdown()


if __name__ == "__main__":
    main()
