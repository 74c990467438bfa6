"""What Horovod's callbacks do; each front end mixes them with its Keras's ``Callback``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, MutableMapping
from typing import TYPE_CHECKING, Any

import numpy as np

from horovod._keras.optimizer import build, variables_of
from horovod.common import basics
from horovod.common.gradients import underlying, warn_if_nothing_is_reduced
from horovod.common.objects import allgather_object
from horovod.common.variables import broadcast_variables
from horovod.tuning import autotuning

logger = logging.getLogger("horovod")

Logs = MutableMapping[str, Any] | None
Multiplier = float | Callable[[float], float]

if TYPE_CHECKING:

    class _Callback:
        """What the mixins call of ``keras.callbacks.Callback``."""

        model: Any
        params: dict[str, Any]

        def set_model(self, model: Any) -> None: ...
        def on_train_begin(self, logs: Logs = None) -> None: ...
        def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None: ...
        def on_train_batch_end(self, batch: int, logs: Logs = None) -> None: ...
        def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None: ...
        def on_epoch_end(self, epoch: int, logs: Logs = None) -> None: ...
        def on_test_begin(self, logs: Logs = None) -> None: ...
        def on_test_end(self, logs: Logs = None) -> None: ...

else:
    _Callback = object

_said: set[str] = set()


def _say_once(text: str) -> None:
    """Log ``text`` on rank 0, once in this process."""
    if text not in _said and basics.is_initialized() and basics.rank() == 0:
        _said.add(text)
        logger.warning("%s", text)


class HorovodCallback(_Callback):
    """What every callback of Horovod does.

    It switches XLA off, which cannot compile communication, lets the tuner pause while the model is
    evaluated, and notices that no gradient was reduced.
    """

    def set_model(self, model: Any) -> None:
        """**Local.** Take the model; its training function is not made yet."""
        super().set_model(model)
        if basics.is_initialized() and basics.size() > 1:
            _switch_compiling_off(model)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """**Local.** Say if the step that is over did not reduce its gradients."""
        super().on_train_batch_end(batch, logs)
        warn_if_nothing_is_reduced("model.fit() trains")

    def on_test_begin(self, logs: Logs = None) -> None:
        """**Local.** Let the tuner pause: evaluation is no training step."""
        super().on_test_begin(logs)
        if basics.is_initialized():
            autotuning.pause()

    def on_test_end(self, logs: Logs = None) -> None:
        """**Local.** Let the tuner go on."""
        super().on_test_end(logs)
        if basics.is_initialized():
            autotuning.resume()


class BroadcastGlobalVariables(HorovodCallback):
    """Gives all ranks root's weights and optimizer state, before the first step."""

    def __init__(
        self, root_rank: int, device: str = "", local_variables: Iterable[Any] | None = None
    ) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.broadcast_done = False
        self._local: dict[int, Any] = {}
        if local_variables is None:
            local_variables = ()
        elif hasattr(local_variables, "assign"):
            local_variables = (local_variables,)
        for variable in local_variables:
            if not hasattr(variable, "assign"):
                raise ValueError(f"local_variables: expected variables, got {variable!r}")
            self.register_local_var(variable)

    def register_local_var(self, var: Any) -> None:
        """**Local**, every rank alike. Leave ``var`` as it is on each rank."""
        self._local[id(underlying(var))] = var

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """**Collective**, the first time. Broadcast what is there: the model is built as a rule."""
        super().on_train_batch_begin(batch, logs)
        if not self.broadcast_done and getattr(self.model, "built", False) and self.model.weights:
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """**Collective**, where the first step had to build the model. Broadcast it now."""
        super().on_train_batch_end(batch, logs)
        if not self.broadcast_done:
            self._broadcast()

    def _broadcast(self) -> None:
        model, optimizer = self.model, getattr(self.model, "optimizer", None)
        variables = list(model.weights)
        if optimizer is not None:
            build(optimizer, model.trainable_variables)
            variables += variables_of(optimizer)
        wanted = [v for v in variables if id(underlying(v)) not in self._local]
        broadcast_variables(wanted, self.root_rank)
        self.broadcast_done = True


class MetricAverage(HorovodCallback):
    """Averages an epoch's metrics over the ranks, for callbacks that come after it."""

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """**Collective.** Average ``logs`` in place; a metric over the ranks that have it."""
        if logs is not None and basics.size() > 1:
            own = {name: value for name, value in logs.items() if _is_number(value)}
            by_rank = allgather_object({k: float(v) for k, v in own.items()}, "metrics")
            for name in own:
                logs[name] = float(np.mean([each[name] for each in by_rank if name in each]))
        super().on_epoch_end(epoch, logs)


class LearningRateSchedule(HorovodCallback):
    """Sets the learning rate to ``initial_lr * multiplier`` in some of the epochs."""

    def __init__(
        self,
        initial_lr: float,
        multiplier: Multiplier,
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        self._momentum: float | None = None
        if callable(multiplier):
            self.multiplier: Callable[[float], float] = multiplier
        else:
            self.staircase = True
            self.multiplier = lambda epoch: multiplier

    def on_train_begin(self, logs: Logs = None) -> None:
        """**Local.** Find how many steps an epoch has.

        Raises:
            ValueError: That is not known, and the learning rate is to change between steps.
        """
        super().on_train_begin(logs)
        if self.staircase or self.steps_per_epoch is not None:
            return
        self.steps_per_epoch = (self.params or {}).get("steps")
        if not self.steps_per_epoch:
            raise ValueError(
                f"{type(self).__name__}: the number of steps of an epoch is not known: pass "
                "steps_per_epoch to it, or to model.fit()"
            )

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """**Local.** Remember the epoch."""
        super().on_epoch_begin(epoch, logs)
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """**Local.** Set the learning rate where it is due."""
        super().on_train_batch_begin(batch, logs)
        epoch = self.current_epoch
        if epoch < self.start_epoch or (self.end_epoch is not None and epoch >= self.end_epoch):
            return
        if self.staircase and batch == 0:
            self._set(epoch)
        elif not self.staircase:
            self._set(epoch + batch / (self.steps_per_epoch or 1))

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """**Local.** Set the momentum back."""
        super().on_train_batch_end(batch, logs)
        if self._momentum is not None:
            _innermost(self.model.optimizer).momentum = self._momentum
            self._momentum = None

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """**Local.** Put the learning rate into ``logs``, as "lr"."""
        super().on_epoch_end(epoch, logs)
        if logs is not None:
            logs["lr"] = _number(self.model.optimizer.learning_rate)

    def _set(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        old, new = _number(optimizer.learning_rate), self.initial_lr * self.multiplier(epoch)
        optimizer.learning_rate = new
        momentum = getattr(_innermost(optimizer), "momentum", None)
        if not self.momentum_correction or momentum is None or old == 0 or new == old:
            return
        if _number(momentum) == 0:
            return
        if isinstance(momentum, int | float) and _is_traced(self.model):
            _say_once(
                "momentum correction has no effect: the optimizer's momentum is a number within a "
                "step that is traced once; momentum_correction=False says that you know, and "
                "run_eagerly=True lets it work"
            )
            return
        self._momentum = _number(momentum)
        _innermost(optimizer).momentum = self._momentum * new / old


class LearningRateWarmup(LearningRateSchedule):
    """Raises the learning rate from ``initial_lr / size`` to ``initial_lr``, step by step.

    ``lr(epoch) = initial_lr / size * (epoch * (size - 1) / warmup_epochs + 1)``.

    Source: Goyal et al., Accurate, Large Minibatch SGD, arXiv 1706.02677, section 2.2.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            # A step later, so that the last step of the last epoch has the whole rate.
            epoch += 1.0 / (self.steps_per_epoch or 1)
            size = basics.size()
            return 1.0 / size * (epoch * (size - 1) / warmup_epochs + 1)

        super().__init__(
            initial_lr,
            multiplier,
            start_epoch=0,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """**Local.** Say that the warm-up is over, where ``verbose`` asks for it."""
        super().on_epoch_end(epoch, logs)
        if self.verbose and epoch == (self.end_epoch or 0) - 1:
            rate = _number(self.model.optimizer.learning_rate)
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


class BestCheckpoint(HorovodCallback):
    """Saves the best model, on rank 0."""

    if TYPE_CHECKING:

        def _save_model(self, *positional: Any, **arguments: Any) -> None: ...

    else:

        def _save_model(self, *positional: Any, **arguments: Any) -> None:
            """**Rank 0 only.** Save it."""
            if not basics.is_initialized() or basics.rank() == 0:
                super()._save_model(*positional, **arguments)


def checkpoint_arguments(
    filepath: str | None,
    monitor: str,
    verbose: int,
    save_weights_only: bool,
    mode: str,
    save_freq: str | int,
) -> dict[str, Any]:
    """**Local.** Return the arguments of Keras's ``ModelCheckpoint`` for the best model."""
    default = "best_model.weights.h5" if save_weights_only else "best_model.keras"
    return {
        "filepath": default if filepath is None else filepath,
        "monitor": monitor,
        "verbose": verbose,
        "save_best_only": True,
        "save_weights_only": save_weights_only,
        "mode": mode,
        "save_freq": save_freq,
    }


def _switch_compiling_off(model: Any) -> None:
    if getattr(model, "jit_compile", False):
        model.jit_compile = False
        _say_once(
            "the model's compilation (jit_compile, which Keras chooses by itself on GPUs) is "
            "switched off: compiled steps cannot communicate; jit_compile=False in "
            "model.compile() says so from the start"
        )


def _is_traced(model: Any) -> bool:
    """Return whether a training step is a graph, which knows numbers as they were."""
    if getattr(model, "run_eagerly", False):
        return False
    optimizer = model.optimizer
    if not hasattr(type(optimizer), "stateless_apply"):
        return True
    import keras

    return str(keras.backend.backend()) == "tensorflow"


def _innermost(optimizer: Any) -> Any:
    return vars(optimizer).get("inner_optimizer") or optimizer


def _is_number(value: Any) -> bool:
    """Return whether a metric is one number, of Python, numpy or a framework."""
    if isinstance(value, str | bytes | bool) or np.ndim(value) != 0:
        return False
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _number(value: Any) -> float:
    """Return a learning rate or momentum, whatever holds it, as a number."""
    return float(value.numpy() if hasattr(value, "assign") else value)
