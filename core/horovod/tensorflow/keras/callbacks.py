"""Callbacks for ``fit`` of ``tf.keras``; what they do is in ``horovod._keras.callbacks``."""

from __future__ import annotations

import tensorflow as tf
from horovod._keras import callbacks as shared

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(
    shared.BroadcastGlobalVariables,
    tf.keras.callbacks.Callback,  # type: ignore[misc]
):
    """Gives all ranks root's weights and optimizer state, before the first step.

    Args:
        root_rank: Global rank of the sender.
        device: Accepted for compatibility.
        local_variables: A variable or several that stay as they are on each rank.
    """


class MetricAverageCallback(shared.MetricAverage, tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Averages an epoch's metrics over the ranks; to be listed before callbacks that use them.

    Args:
        device: Accepted for compatibility.
    """


class LearningRateScheduleCallback(shared.LearningRateSchedule, tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Sets the learning rate to ``initial_lr * multiplier`` in some of the epochs.

    Args:
        initial_lr: The rate at multiplier 1.
        multiplier: A number, or a function of the epoch, which is not whole between epochs.
        start_epoch: First epoch in which it does.
        end_epoch: First epoch in which it does no longer; None: to the end.
        staircase: Only at the beginning of epochs; always so with a number.
        momentum_correction: Scale the momentum for the step in which the rate changes.
        steps_per_epoch: None: Keras knows.
    """


class LearningRateWarmupCallback(shared.LearningRateWarmup, tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Raises the learning rate from ``initial_lr / size`` to ``initial_lr``, step by step.

    Args:
        initial_lr: The rate after the warm-up.
        warmup_epochs: Its length.
        momentum_correction: Scale the momentum for the step in which the rate changes.
        steps_per_epoch: None: Keras knows.
        verbose: 1: say when it is over.
    """


class BestModelCheckpoint(shared.BestCheckpoint, tf.keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """Saves the best model so far, on rank 0.

    Args:
        monitor: Metric that says which one is best.
        verbose: 1: say so.
        save_weights_only: Only the weights.
        mode: "min", "max" or "auto".
        save_freq: "epoch", or a number of batches.
        filepath: Where to; None: ``best_model.keras`` (``best_model.weights.h5``) in the working
            directory.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        filepath: str | None = None,
    ) -> None:
        super().__init__(
            **shared.checkpoint_arguments(
                filepath, monitor, verbose, save_weights_only, mode, save_freq
            )
        )
