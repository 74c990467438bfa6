"""One rank: a step's gradients in float32, float16 and bfloat16 take turns.

    mpirun -n 2 python rank.py --rounds 20

A step hands over all gradients, compressed as ``DistributedOptimizer`` does it, waits for all of
them and decompresses. Orders are random; all ranks start a step together, and the slowest rank's
time is the sample. What comes out is checked each time.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from harness import tell

import horovod.torch as hvd

GRADIENTS, ELEMENTS = 50, 125_000
"""25 MB in float32."""
WAYS = {
    "float32": hvd.Compression.none,
    "float16": hvd.Compression.fp16,
    "bfloat16": hvd.Compression.bf16,
}


def step(gradients: list[torch.Tensor], way: str) -> list[torch.Tensor]:
    handles = []
    for number, gradient in enumerate(gradients):
        sent, context = WAYS[way].compress(gradient)
        handle = hvd.allreduce_async(sent, op=hvd.Average, name=f"{way}.{number}")
        handles.append((handle, context))
    return [WAYS[way].decompress(hvd.synchronize(handle), context) for handle, context in handles]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    hvd.init()
    torch.set_num_threads(1)
    order = random.Random(1)
    gradients = [torch.full((ELEMENTS,), float(hvd.rank())) for _ in range(GRADIENTS)]
    right = (hvd.size() - 1) / 2
    samples: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(options.rounds + 2):
        for way in order.sample(list(WAYS), len(WAYS)):
            hvd.barrier()
            begin = time.perf_counter()
            results = step(gradients, way)
            own = torch.tensor(1000 * (time.perf_counter() - begin))
            assert all(bool((result == right).all()) for result in results), way
            slowest = float(hvd.allreduce(own, op=hvd.Max, name="slowest"))
            if number >= 2:
                samples[way].append(slowest)
    if hvd.rank() == 0:
        tell(samples)
    hvd.shutdown()


if __name__ == "__main__":
    main()
