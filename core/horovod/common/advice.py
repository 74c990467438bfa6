"""Advice on settings that make a job slow without making it wrong: a sentence, or "" for none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from horovod._engine import StepRecord

THREADS = "OMP_NUM_THREADS"
FEWEST_STEPS = 3
"""A sequence of operations that comes less often is start-up, not training."""


def on_threads(given: str, *, local_size: int, cores: float, own_cores: float) -> str:
    """Return what to say where a host's ranks have more threads than there are cores.

    Args:
        given: Value of ``OMP_NUM_THREADS``; "" where it is not set.
        local_size: Ranks of this host.
        cores: Cores that this host's ranks may use together; a part of one where a container's
            quota is less.
        own_cores: Cores that this rank may use.
    """
    first = given.split(",")[0].strip()  # the other numbers are of nested loops
    threads = int(first) if first.isdecimal() else 1
    fewest = max(1, int(min(cores / local_size, own_cores)))
    if threads <= fewest or (threads * local_size <= cores and threads <= own_cores):
        return ""
    if threads * local_size > cores:
        where = (
            f"{local_size} ranks of this host are {threads * local_size} threads on {cores:g} cores"
        )
    else:
        where = f"a rank that may use {own_cores:g} of {cores:g} cores"
    return (
        f"{THREADS}={threads} for {where}: steps wait for each other's threads; set "
        f"{THREADS}={fewest}, or call torch.set_num_threads({fewest})"
    )


def on_cache(tensors: int, capacity: int) -> str:
    """Return what to say where a training step has more tensors than the response cache holds."""
    if not 0 < capacity < tensors:
        return ""
    enough = 1 << (tensors - 1).bit_length()
    return (
        f"the response cache holds {capacity:,} of {tensors:,} tensors of a training step, so that "
        f"they are negotiated again in every step: set HOROVOD_CACHE_CAPACITY >= {enough}"
    )


def tensors_of_step(
    records: Sequence[StepRecord], signatures: Sequence[tuple[int, Sequence[object]]]
) -> int:
    """Return how many operations the most frequent training step has; 0 where none repeats.

    Args:
        records: Steps, the newest ones.
        signatures: Operations of each kind of step.
    """
    counts: Counter[int] = Counter()
    for record in records:
        counts[record.signature] += record.count
    for signature, count in counts.most_common(1):
        if count >= FEWEST_STEPS:
            return len(dict(signatures).get(signature, ()))
    return 0
