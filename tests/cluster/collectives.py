"""Runs every collective under every hierarchical setting and says what was not right.

collectives.py RESULT_FILE

Rank 0 writes {"ranks": [[rank, size, local_rank, local_size, cross_rank, cross_size, host], ...],
"wrong": {"10 allreduce single": ["..."], ...}, "sent": {"10": bytes that left host a},
"started": [[bool, bool], ...]}, where "10" are the two booleans, and "started" those of each rank
at the start. Every value is a small whole number: results must be exact in every type.
"""

from __future__ import annotations

import itertools
import json
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

import horovod.torch as hvd
from horovod.common import basics

LENGTHS = (1, 2, 3, 7, 64, 1000, 200_000)
TYPES = (torch.uint8, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64)
OPERATIONS = {hvd.Sum: np.sum, hvd.Max: np.max, hvd.Average: np.mean}
SENT = Path("/sys/class/net/eth0/statistics/tx_bytes")
TRAFFIC_ELEMENTS = 2_000_000
epochs = itertools.count(1)

Wrong = Iterator[str]


def values(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return whole numbers that differ between ranks; sums and means are exact in every type."""
    count = int(np.prod(shape))
    numbers = (torch.arange(count) * 7 % 11 + rank * 3) % 5 * hvd.size()
    return numbers.to(dtype).reshape(shape)


def expected(shape: tuple[int, ...], dtype: torch.dtype, op: int) -> np.ndarray:
    stacked = np.stack([values(r, shape, dtype).numpy() for r in range(hvd.size())])
    return OPERATIONS[op](stacked.astype(np.float64), axis=0).astype(stacked.dtype)


def differs(what: str, got: torch.Tensor, right: np.ndarray) -> Wrong:
    if got.numpy().dtype != right.dtype or got.shape != right.shape:
        yield f"{what}: {got.dtype} {tuple(got.shape)}, expected {right.dtype} {right.shape}"
    elif not np.array_equal(got.numpy(), right):
        at = np.flatnonzero(got.numpy().ravel() != right.ravel())
        yield f"{what}: {len(at)} of {right.size} differ, the first at {at[0]}"


def allreduce_single() -> Wrong:
    for length, dtype, op in itertools.product(LENGTHS, TYPES, OPERATIONS):
        tensor = values(hvd.rank(), (length,), dtype)
        got = hvd.allreduce(tensor, op=op, name=f"{length} {dtype} {op}")
        yield from differs(f"{dtype} x {length}, op {op}", got, expected((length,), dtype, op))


def allreduce_fused() -> Wrong:
    for dtype, op in itertools.product(TYPES, OPERATIONS):
        tensors = [values(hvd.rank(), (length,), dtype) for length in LENGTHS]
        handles = [
            hvd.allreduce_async_(t, op=op, name=f"{i} {dtype} {op}") for i, t in enumerate(tensors)
        ]
        for length, handle in zip(LENGTHS, handles, strict=True):
            got = hvd.synchronize(handle)
            yield from differs(f"{dtype} x {length}, op {op}", got, expected((length,), dtype, op))


def allgather_uneven() -> Wrong:
    for dtype, tail, step in itertools.product(TYPES, [(), (3,), (2, 500)], (0, 1, 7)):
        parts = [values(r, (1 + step * r, *tail), dtype) for r in range(hvd.size())]
        got = hvd.allgather(parts[hvd.rank()], name=f"{dtype} {tail} {step}")
        yield from differs(f"{dtype} {tail}, step {step}", got, torch.cat(parts).numpy())


def allgather_fused() -> Wrong:
    shapes = [[(length * (r + 1) // 2,) for r in range(hvd.size())] for length in LENGTHS]
    parts = [
        [values(r, shape, torch.int32) for r, shape in enumerate(of_length)] for of_length in shapes
    ]
    handles = [hvd.allgather_async(p[hvd.rank()], name=f"g{i}") for i, p in enumerate(parts)]
    for length, right, handle in zip(LENGTHS, parts, handles, strict=True):
        yield from differs(f"x {length}", hvd.synchronize(handle), torch.cat(right).numpy())


def broadcast_from_every_root() -> Wrong:
    for root, dtype, length in itertools.product(range(hvd.size()), TYPES[::2], LENGTHS):
        got = hvd.broadcast(values(hvd.rank(), (length,), dtype), root)
        yield from differs(f"{dtype} from {root}", got, values(root, (length,), dtype).numpy())


def barrier() -> Wrong:
    hvd.barrier()
    yield from ()


CHECKS: dict[str, Callable[[], Wrong]] = {
    "allreduce single": allreduce_single,
    "allreduce fused": allreduce_fused,
    "allgather uneven": allgather_uneven,
    "allgather fused": allgather_fused,
    "broadcast": broadcast_from_every_root,
    "barrier": barrier,
}


def set_booleans(allreduce: bool, allgather: bool) -> None:
    """Have all ranks use these settings; returns when all do. **Collective.**"""
    engine = basics.engine()
    if hvd.rank() == 0:
        wanted = engine.params()
        wanted.hierarchical_allreduce = allreduce
        wanted.hierarchical_allgather = allgather
        engine.propose(next(epochs), wanted)
    for _ in range(1000):
        engine.end_step()
        now = engine.params()
        there = (now.hierarchical_allreduce, now.hierarchical_allgather) == (allreduce, allgather)
        if hvd.allreduce(torch.tensor([int(there)]), op=hvd.Min, name="there")[0]:
            return
    raise AssertionError("the proposed settings did not arrive on all ranks within 1,000 steps")


def bytes_sent() -> int:
    """Return the bytes that left host a during one large allreduce. **Collective.**"""
    tensor = torch.ones(TRAFFIC_ELEMENTS)
    hvd.barrier()
    before = int(SENT.read_text())
    hvd.allreduce_(tensor, op=hvd.Sum, name="traffic")
    hvd.barrier()
    return int(SENT.read_text()) - before


def main(path: Path) -> None:
    torch.set_num_threads(1)
    hvd.init()
    place = [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()]
    place += [hvd.cross_rank(), hvd.cross_size()]
    ranks = hvd.allgather_object([*place, socket.gethostname()])
    now = basics.engine().params()
    started = hvd.allgather_object([now.hierarchical_allreduce, now.hierarchical_allgather])
    wrong: dict[str, list[str]] = {}
    sent = {}
    for allreduce, allgather in itertools.product((False, True), repeat=2):
        set_booleans(allreduce, allgather)
        name = f"{allreduce:d}{allgather:d}"
        for check, run in CHECKS.items():
            own = [f"rank {hvd.rank()}: {text}" for text in run()]
            wrong[f"{name} {check}"] = list(itertools.chain(*hvd.allgather_object(own)))[:10]
        sent[name] = bytes_sent()
    if hvd.rank() == 0:
        content = {"ranks": ranks, "started": started, "wrong": wrong, "sent": sent}
        path.write_text(json.dumps(content))
    hvd.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
