"""Trains as examples/digits/train.py does, with a larger network, and can write step times.

    horovodrun -np 2 python experiments/digits/train.py
    mpirun -np 2 python experiments/digits/train.py

The script is the example's, and nothing in it knows of tuning. ``--stats`` writes what compare.py
needs: step times, the settings in force on every rank, accuracy.
"""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType

import torch
from model import DigitsNet, PixelNet

import horovod.torch as hvd

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/digits/train.py"

Batch = Sequence[torch.Tensor]


def load_example() -> ModuleType:
    """Return the script that users start from."""
    spec = importlib.util.spec_from_file_location("example", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def timed(batches: Iterable[Batch], times_ms: list[float]) -> Iterator[Batch]:
    """Hand ``batches`` on and note how long each step takes, from one batch to the next."""
    begin = time.perf_counter()
    for batch in batches:
        yield batch
        end = time.perf_counter()
        times_ms.append(1000 * (end - begin))
        begin = end


def watch_steps(example: ModuleType) -> list[list[float]]:
    """Return where the step times of each epoch that is trained from now on are found, in ms."""
    epochs: list[list[float]] = []
    train_epoch = example.train_epoch

    def watched(
        model: torch.nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[Batch]
    ) -> None:
        epochs.append([])
        train_epoch(model, optimizer, timed(batches, epochs[-1]))

    example.train_epoch = watched
    return epochs


def write_stats(path: Path, step_ms: list[list[float]], accuracy: float) -> None:
    """Write step times (rank 0's) and the settings in force on every rank."""
    settings = hvd.allgather_object(dict(hvd.autotune.status().params))
    if hvd.rank() == 0:
        content = {"step_ms": step_ms, "settings": settings, "accuracy": accuracy}
        path.write_text(json.dumps({**content, "ranks": hvd.size()}))


def main() -> None:
    example = load_example()
    parser = example.make_parser()
    parser.set_defaults(epochs=12)
    parser.add_argument("--width", type=int, default=16, help="channels of the first layers")
    parser.add_argument("--embedding", type=int, help="a network of pixel embeddings, so wide")
    parser.add_argument("--stats", type=Path, help="JSON file with step times and settings")
    arguments = parser.parse_args()
    hvd.init()
    torch.manual_seed(arguments.seed)
    step_ms = watch_steps(example)
    wide = arguments.embedding
    model = DigitsNet(arguments.width) if wide is None else PixelNet(wide)
    accuracy = example.train(model, arguments)
    if arguments.stats:
        write_stats(arguments.stats, step_ms, accuracy)
    hvd.shutdown()


if __name__ == "__main__":
    main()
