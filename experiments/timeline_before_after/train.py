"""One rank: 161 small gradients a step (0.5 MB) and 5 ms of compute, which is slept.

python train.py TIMELINE STEPS      records STEPS steps after 15 others; TIMELINE "-": tunes instead
"""

from __future__ import annotations

import sys
import time

import torch

import horovod.torch as hvd

SIZES = [16 + 2468 * (number % 10 == 0) * 2 + 820 * (number % 3 == 0) for number in range(161)]


def step(gradients: list[torch.Tensor]) -> None:
    handles = []
    for number, gradient in enumerate(gradients):
        if number % 32 == 0:
            time.sleep(0.001)
        handles.append(hvd.allreduce_async_(gradient, name=f"gradient.{number}"))
    for handle in handles:
        hvd.synchronize(handle)
    hvd.autotune.step()


def main(path: str, steps: int) -> None:
    hvd.init()
    torch.set_num_threads(1)
    gradients = [torch.ones(size) for size in SIZES]
    if path == "-":
        for number in range(steps):
            step(gradients)
            if number % 20 == 0 and hvd.broadcast_object(hvd.autotune.status().state, 0) == "done":
                break
        return
    for _ in range(15):
        step(gradients)
    hvd.start_timeline(path)
    for _ in range(steps):
        step(gradients)
    hvd.stop_timeline()
    assert all(torch.equal(gradient, torch.ones_like(gradient)) for gradient in gradients)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
