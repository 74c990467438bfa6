"""Elastic jobs of ``tf.keras``: ``hvd.elastic``. See docs/elastic.md."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from horovod._keras import elastic as shared
from horovod.tensorflow.elastic import run

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]


class KerasState(shared.KerasState):
    """What a training keeps while ranks come and go.

    Args:
        model: Built: it has its weights.
        optimizer: None: the one that the model was compiled with.
        **kwargs: {attribute: first value}; the callbacks want ``batch=0`` and ``epoch=0``.
    """

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        super().__init__(model, optimizer, **kwargs)


class CommitStateCallback(shared.CommitState, tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Commits the state after so many batches, and after every epoch; to be listed last.

    Args:
        state: What is committed.
        batches_per_commit: Batches from commit to commit.
    """


class UpdateBatchStateCallback(shared.UpdateBatchState, tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps ``state.batch`` at the number of batches of this epoch since ``fit`` was called.

    Args:
        state: The one whose attribute it is.
    """


class UpdateEpochStateCallback(shared.UpdateEpochState, tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps ``state.epoch`` at the number of epochs that the training has had.

    Args:
        state: The one whose attribute it is.
    """
