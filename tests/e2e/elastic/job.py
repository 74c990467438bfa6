"""Trains a small model under ``hvd.elastic.run``: ``python job.py FOLDER STEPS SECONDS_A_STEP``.

It ends earlier at the commit after which there is FOLDER/stop.

Each step has its own samples, the same on all ranks, so that the weights at the end are those of
any number of ranks. What happens is a line in FOLDER/log; a rank leaves its weights at the end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

import horovod.torch as hvd
from horovod.common.rounds import rounds

STEPS_PER_COMMIT = 4
LEARNING_RATE = 0.05


def samples(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return input (8, 3) and target (8, 1) of a step."""
    chance = torch.Generator().manual_seed(step)
    x = torch.randn(8, 3, generator=chance, dtype=torch.float64)
    return x, x @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64)


def make_model() -> torch.nn.Module:
    model = torch.nn.Linear(3, 1).double()
    torch.nn.init.constant_(model.weight, 0.0)
    torch.nn.init.constant_(model.bias, 0.0)
    return model


def train_step(model: torch.nn.Module, optimizer: Any, step: int) -> float:
    x, target = samples(step)
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), target)
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def weights(model: torch.nn.Module) -> list[float]:
    return [
        float(each) for parameter in model.parameters() for each in parameter.detach().flatten()
    ]


def alone(steps: int) -> list[float]:
    """Return the weights after ``steps`` steps of one process without interruption."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for step in range(steps):
        train_step(model, optimizer, step)
    return weights(model)


def note(folder: Path, what: str, **more: Any) -> None:
    """Append a line, in one piece."""
    content = {
        "what": what,
        "time": time.time(),
        "worker": int(os.environ.get("HOROVOD_ELASTIC_WORKER", "-1")),
        "pid": os.getpid(),
        "host": os.environ.get("HOROVOD_HOSTNAME", ""),
        "rank": hvd.rank(),
        "size": hvd.size(),
        "round": rounds.current.number if rounds.current else 0,
        **more,
    }
    with (folder / "log").open("a") as log:
        log.write(json.dumps(content) + "\n")


def main(folder: Path, steps: int, sleep_s: float) -> None:
    if os.environ.get("FAIL_ON_HOST") == os.environ["HOROVOD_HOSTNAME"]:
        raise RuntimeError("this host is broken")
    hvd.init()
    note(folder, "up")
    time.sleep(float(os.environ.get("SECONDS_BEFORE_TRAINING", "0")))
    model = make_model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
        named_parameters=model.named_parameters(),
    )
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)

    @hvd.elastic.run
    def train(state: Any) -> None:
        note(folder, "round", step=state.step)
        while state.step < steps:
            if (folder / "fail").exists():
                raise RuntimeError("all ranks are told to fail")
            loss = train_step(model, optimizer, state.step)
            state.step += 1
            if hvd.rank() == 0:
                note(folder, "step", step=state.step, loss=loss)
            time.sleep(sleep_s)
            if state.step % STEPS_PER_COMMIT == 0:
                state.commit()
                if any(hvd.allgather_object((folder / "stop").exists())):
                    break

    train(state)
    (folder / f"weights-{hvd.rank()}.json").write_text(json.dumps(weights(model)))
    note(folder, "end", step=state.step)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
