"""The training of ``job.py`` on plain arrays, for jobs in which nothing of torch is tested."""

from __future__ import annotations

from typing import Any

import numpy as np

from e2e import on_arrays as hvd
from horovod.common.objects import broadcast_object
from horovod.elastic.loop import run_fn
from horovod.elastic.state import ObjectState

LEARNING_RATE = 0.05

init = hvd.init


def run(function: Any) -> Any:
    return run_fn(function, _reset)


def _reset() -> None:
    hvd.shutdown()
    hvd.init()


def samples(step: int) -> tuple[np.ndarray, np.ndarray]:
    """Return input (8, 3) and target (8, 1) of a step."""
    x = np.random.default_rng(step).standard_normal((8, 3))
    return x, x @ [[1.0], [-2.0], [0.5]]


def make_state() -> ObjectState:
    return ObjectState(broadcast_object, hvd.rank, model=np.zeros(4), step=0)


def gradient(model: np.ndarray, step: int) -> tuple[np.ndarray, float]:
    """Return the gradient of the mean squared error, and that."""
    x, target = samples(step)
    error = x @ model[:3, None] + model[3] - target
    return np.append(2 * (x * error).mean(0), 2 * error.mean()), float((error**2).mean())


def train_step(state: ObjectState) -> float:
    own, loss = gradient(state.model, state.step)
    state.model = state.model - LEARNING_RATE * hvd.allreduce_(own, "gradient") / hvd.size()
    return loss


def weights(state: ObjectState) -> list[float]:
    return [float(number) for number in state.model]


def alone(steps: int) -> list[float]:
    """Return the weights after ``steps`` steps of one process without interruption."""
    model = np.zeros(4)
    for step in range(steps):
        model -= LEARNING_RATE * gradient(model, step)[0]
    return [float(number) for number in model]
