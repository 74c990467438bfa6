"""Elastic jobs of Keras: the state of a model and optimizer, and what Horovod's callbacks do."""

from __future__ import annotations

from typing import Any

from horovod._keras.callbacks import HorovodCallback, Logs
from horovod._keras.optimizer import build, variables_of
from horovod.common.gradients import underlying
from horovod.elastic.variables import VariablesState


class KerasState(VariablesState):
    """What a training of Keras keeps while ranks come and go; see ``horovod.keras.elastic``."""

    def __init__(
        self, model: Any, optimizer: Any = None, backend: object = None, **kwargs: Any
    ) -> None:
        self.model = model
        self._optimizer = optimizer
        super().__init__(self._all_variables, **kwargs)

    @property
    def optimizer(self) -> Any:
        """**Local.** The one that was given, else the one that the model was compiled with."""
        if self._optimizer is not None:
            return self._optimizer
        return getattr(self.model, "optimizer", None)

    def restore(self) -> None:
        """**Local.** As of ``State``; passes that were accumulated are forgotten."""
        super().restore()
        self.reset()

    def reset(self) -> None:
        """**Local.** Begin the passes of the next step anew."""
        accumulator = getattr(self.optimizer, "_agg_helper", None)
        if accumulator is not None:
            accumulator.forget()

    def _all_variables(self) -> list[Any]:
        found = list(self.model.weights)
        optimizer = self.optimizer
        if optimizer is not None:
            if found:
                build(optimizer, self.model.trainable_variables)
            found += variables_of(optimizer)
        return list({id(underlying(variable)): variable for variable in found}.values())


class CommitState(HorovodCallback):
    """Commits a state now and then in ``fit``."""

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: Logs = None) -> None:
        """**Local**, every rank alike. Begin to count: ranks that have just come do, too."""
        super().on_train_begin(logs)
        self.batches_remaining = self.batches_per_commit

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """**Collective**, now and then. Commit after so many batches."""
        super().on_train_batch_end(batch, logs)
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.batches_remaining = self.batches_per_commit
            self.commit()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """**Collective.** Commit: the epoch is over."""
        super().on_epoch_end(epoch, logs)
        self.commit()

    def commit(self) -> None:
        """**Collective.** Commit the state."""
        self.state.commit()


class UpdateBatchState(HorovodCallback):
    """Keeps ``state.batch`` at the number of batches of this epoch since ``fit`` was called."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """**Local.** Count the batch."""
        super().on_train_batch_end(batch, logs)
        self.state.batch = batch + 1

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """**Local.** The next epoch begins with its first batch."""
        super().on_epoch_end(epoch, logs)
        self.state.batch = 0


class UpdateEpochState(HorovodCallback):
    """Keeps ``state.epoch`` at the number of epochs that the training has had."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.initial_epoch = state.epoch

    def on_train_begin(self, logs: Logs = None) -> None:
        """**Local.** ``fit`` counts from 0 each time."""
        super().on_train_begin(logs)
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """**Local.** Count the epoch."""
        super().on_epoch_end(epoch, logs)
        self.state.epoch = self.initial_epoch + epoch + 1
