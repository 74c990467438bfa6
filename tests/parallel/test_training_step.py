"""Jobs whose training steps are hard to find, tuned by the real service: U9, U11, U19, U20.

``SHORT`` makes the tuner finish its first trial a few steps after it has found the training step.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import pytest
import torch

import horovod.torch as hvd

SHORT = {
    "HOROVOD_AUTOTUNE": "1",
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "0",
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "1",
    "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "1",
}
PATIENCE_S = 60
Restart = Callable[[dict[str, str]], None]

pytestmark = pytest.mark.usefixtures("two_ranks")


class Model:
    """A small model with a wrapped optimizer."""

    def __init__(self, width: int = 16) -> None:
        self.model = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.Linear(width, 1))
        self.optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(self.model.parameters(), lr=0.001),
            named_parameters=self.model.named_parameters(),
        )

    def backward(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.ones(4, 8)).square().mean().backward()

    def step(self) -> None:
        self.backward()
        self.optimizer.step()


def is_tuned() -> bool:
    """Rank 0: whether a trial was finished."""
    status = hvd.autotune.status()
    return status.state == "done" or "trial 1 of" in status.text


def train(step: Callable[[], None], until: Callable[[], bool] = is_tuned) -> bool:
    """Make steps until rank 0 says that it is enough; return whether it did."""
    deadline = time.monotonic() + PATIENCE_S
    word = torch.zeros(1)
    while word.item() == 0:
        for _ in range(20):
            step()
        time.sleep(0.02)  # ranks that fill the cores leave little to the service
        if hvd.rank() == 0:
            word[0] = 1 if until() else -1 if time.monotonic() > deadline else 0
        hvd.broadcast_(word, 0, name="word")
    return word.item() == 1


@pytest.mark.parametrize("how", ["unnamed", "one name", "objects"])
def test_communication_before_the_first_step_is_not_taken_for_training(
    how: str, restart: Restart
) -> None:
    """U19."""
    restart(SHORT)
    for _ in range(40):
        if how == "objects":
            hvd.broadcast_object({"epoch": 1}, 0)
        else:
            hvd.allreduce(torch.ones(600), name=None if how == "unnamed" else "x")
    assert train(Model().step)


def test_training_that_follows_a_loop_that_was_tuned_is_tuned_again(
    restart: Restart, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "horovod")
    restart(SHORT)
    assert train(lambda: hvd.allreduce(torch.ones(600), name="x"))
    assert train(Model().step, lambda: "another one than the one tuned for" in caplog.text)


def test_a_metric_with_another_name_in_each_step_is_part_of_the_step(restart: Restart) -> None:
    restart(SHORT)
    model, numbers = Model(), iter(range(10**6))

    def step() -> None:
        hvd.allreduce(torch.ones(1), name=f"loss of step {next(numbers)}")
        model.step()

    assert train(step)


def test_steps_of_two_kinds_in_turns_are_tuned_as_pairs(restart: Restart) -> None:
    """U20."""
    restart(SHORT)
    model = Model()
    hvd.broadcast_parameters(model.model.state_dict(), root_rank=0)

    def step() -> None:
        for _ in range(2):
            model.backward()
            model.optimizer.synchronize()
        with model.optimizer.skip_synchronize():
            model.optimizer.step()
        hvd.allreduce(torch.ones(1), name="loss")

    assert train(step)


def test_two_optimizers_in_alternating_order_are_tuned(restart: Restart) -> None:
    """U11."""
    restart(SHORT)
    models = [Model(16), Model(24)]

    def step() -> None:
        models.reverse()
        for model in models:
            model.step()

    assert train(step)


def test_training_in_a_second_thread_is_tuned_while_the_first_communicates(
    restart: Restart,
) -> None:
    """U11."""
    restart(SHORT)
    found = []
    thread = threading.Thread(target=lambda: found.append(train(Model().step)))
    thread.start()
    sums = []
    for number in range(20):
        sums.append(hvd.allreduce(torch.ones(1), op=hvd.Sum, name=f"first thread {number}").item())
    thread.join()
    assert found == [True]
    assert sums == [hvd.size()] * 20


def test_steps_that_never_repeat_are_named_as_the_reason_while_the_job_runs(
    restart: Restart, rank: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "horovod")
    restart(SHORT)
    model, sizes = Model(), iter(range(1, 10**6))

    def step() -> None:
        hvd.allreduce(torch.ones(next(sizes)), name="rest")
        model.step()

    assert train(step, lambda: "not tuned so far" in caplog.text)
    if rank == 0:
        (line,) = [r for r in caplog.records if "not tuned so far" in r.message]
        assert "no training step is recognised" in line.message
        assert line.levelno == logging.WARNING


def test_a_long_warmup_is_told_from_the_first_second(restart: Restart) -> None:
    """U9."""
    restart({"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "500"})
    model = Model()
    assert train(model.step, lambda: "training steps" in hvd.autotune.status().text)
    assert train(model.step, lambda: "waits until 500 samples" in hvd.autotune.status().text)
