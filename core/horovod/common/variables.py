"""Variables of TensorFlow and Keras, of whatever backend: made the same, or seen to differ.

What is needed of a variable is a name and what ``numpy()`` and ``assign()`` do.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from horovod.common import rounds
from horovod.common.arrays import Array, allgather, broadcast_all
from horovod.common.basics import rank
from horovod.common.objects import allgather_object
from horovod.common.process_set import ProcessSet, global_process_set

logger = logging.getLogger("horovod")

BYTES_AT_A_TIME = 2**26
"""So much of the variables is copied and on its way at a time."""


class Variable(Protocol):
    """What TensorFlow's and Keras's variables have in common."""

    @property
    def name(self) -> str:
        """Its name; Keras's have a ``path``, too."""

    def numpy(self) -> Array:
        """Return its value."""

    def assign(self, value: Any) -> Any:
        """Set its value."""


def short_name(variable: Any) -> str:
    """**Local.** Return a name that is the same on all ranks, though not unique.

    Frameworks number what the script does not name, and a rank that makes one more model than
    others numbers differently: such numbers are left out.
    """
    path = getattr(variable, "path", None) or getattr(variable, "name", None) or "variable"
    parts = str(path).removesuffix(":0").split("/")
    return "/".join(re.sub(r"_\d+$", "", part) for part in parts)


def broadcast_variables(
    variables: Iterable[Variable],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> None:
    """**Collective.** Give all ``variables`` root's values.

    Args:
        variables: In the same order on all ranks.
        root_rank: Global rank of the sender.
        process_set: Its members take part; root is one of them.

    Raises:
        ValueError: Numbers, shapes or types differ between the ranks (the same error on all of
            them), or root or this rank is not in the process set.
        HorovodInternalError: The operation failed on all ranks, or a rank died.
    """
    variables = list(variables)
    values = [np.asarray(variable.numpy()) for variable in variables]
    _check_same(variables, values, root_rank, process_set)
    for part in _parts(values):
        copies = [np.array(value, order="C") for value in values[part]]
        names = [f"variable.{i}.{short_name(variables[i])}" for i in range(part.start, part.stop)]
        broadcast_all(copies, root_rank, names, process_set)
        if rank() != root_rank:
            for variable, copy in zip(variables[part], copies, strict=True):
                variable.assign(copy)


def _check_same(
    variables: Sequence[Variable], values: Sequence[Array], root_rank: int, process_set: ProcessSet
) -> None:
    """**Collective.** Raise a ValueError on all ranks where a rank's variables do not suit."""
    own = [
        (short_name(variable), value.shape, value.dtype.name)
        for variable, value in zip(variables, values, strict=True)
    ]
    by_rank = allgather_object((rank(), own), "variables", process_set)
    roots = next((each for number, each in by_rank if number == root_rank), own)
    for number, each in by_rank:
        if len(each) != len(roots):
            raise ValueError(
                f"broadcast_variables: expected the same variables on all ranks, got {len(roots)} "
                f"on rank {root_rank} and {len(each)} on rank {number}; build the model and the "
                "optimizer on all ranks before"
            )
        for ours, theirs in zip(roots, each, strict=True):
            if ours[1:] != theirs[1:]:
                raise ValueError(
                    "broadcast_variables: expected the same shapes and types on all ranks, got "
                    f"{ours[0]} {ours[1]} {ours[2]} on rank {root_rank} and "
                    f"{theirs[0]} {theirs[1]} {theirs[2]} on rank {number}"
                )


def _parts(values: Sequence[Array]) -> Iterator[slice]:
    """Cut ``values`` into runs of about ``BYTES_AT_A_TIME``."""
    start, size = 0, 0
    for i, value in enumerate(values):
        if size and size + value.nbytes > BYTES_AT_A_TIME:
            yield slice(start, i)
            start, size = i, 0
        size += value.nbytes
    if values:
        yield slice(start, len(values))


class Watch:
    """Notices weights that differ between the ranks: nobody has broadcast them.

    A script may broadcast after its first step, so the weights are compared when the second one
    begins. Averaged gradients let weights that are the same stay the same, to the last bits.

    Args:
        variables: The weights whose gradients are reduced.
        process_set: The ranks that train together.
        number: Of this watch, the same on all ranks.

    Attributes:
        done: Whether there is nothing left to be looked at.
    """

    MOST_LOOKS = 8
    """A step may reduce several times before it changes a weight."""
    SAMPLE = 65536
    """So many elements of a weight are looked at."""
    TOLERANCE = 0.01
    """Differences below this share of the weight's norm come from rounding."""

    def __init__(self, variables: Sequence[Variable], process_set: ProcessSet, number: int) -> None:
        self.done = rounds.is_elastic()  # a state sends the weights, and new ranks look at nothing
        self.number = number
        self._variables = list(variables)
        self._process_set = process_set
        self._first: Array | None = None
        self._looks = 0

    def look(self) -> bool:
        """**Collective**, but for the first time. Compare the ranks' weights; return ``done``.

        To be called whenever the gradients are reduced, before the weights change.
        """
        if self.done:
            return True
        own = self._prints()
        if self._first is None:
            self._first = own
            return False
        changed = not np.array_equal(own, self._first, equal_nan=True)
        row = np.append(own.ravel(), float(changed)).reshape(1, -1)
        rows = allgather(row, f"weights.{self.number}", self._process_set)
        self._looks += 1
        if rows[:, -1].all():
            self._compare(rows[:, :-1].reshape(len(rows), -1, 2))
            self.done = True
        self.done = self.done or self._looks >= self.MOST_LOOKS
        if self.done:
            self._variables, self._first = [], None
        return self.done

    def _prints(self) -> Array:
        """Return (n, 2): a projection and the norm of each weight."""
        return np.array([_print(v.numpy()) for v in self._variables]).reshape(-1, 2)

    def _compare(self, prints: Array) -> None:
        """Say which weights differ; ``prints`` has shape (ranks, n, 2)."""
        apart = np.abs(prints[:, :, 0] - prints[0, :, 0])
        different = apart > self.TOLERANCE * prints[:, :, 1].max(axis=0)
        if not different.any():
            return
        ranks = self._process_set.ranks or range(len(prints))
        if rank() != ranks[0]:
            return
        which = np.flatnonzero(different.any(axis=0))
        other = ranks[int(np.flatnonzero(different[:, which[0]])[0])]
        more = f" and {len(which) - 1} more" if len(which) > 1 else ""
        logger.warning(
            "the weights differ between the ranks after the first step: %s%s (ranks %d and %d); "
            "broadcast them before training: hvd.broadcast_variables(model.variables, root_rank=0) "
            "in a loop of your own, BroadcastGlobalVariablesCallback(0) in model.fit()",
            short_name(self._variables[which[0]]),
            more,
            ranks[0],
            other,
        )


def _print(value: Array) -> tuple[float, float]:
    """Return a projection of ``value`` that no other one shares by accident, and its norm."""
    sample = np.asarray(value).ravel()[: Watch.SAMPLE].astype(np.float64)
    signs = np.random.default_rng(0).integers(0, 2, sample.size) * 2.0 - 1.0
    return float(sample @ signs), float(np.linalg.norm(sample))
