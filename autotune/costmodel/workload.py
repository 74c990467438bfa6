"""The tensors of a training step, and when they are ready."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.errors import InvalidSettingError

FORWARD_SHARE = 1 / 3
"""Of the computation: a backward pass does about twice the work of a forward pass."""
LAYER_SHARE = 0.3
"""Of the backward pass: spread evenly over the tensors; the rest goes by their elements."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One training step, as one rank sees it.

    Attributes:
        sizes: ``(n,)`` payload bytes, in the order in which the tensors become ready.
        ready_us: ``(n,)`` ascending, from the start of the step, in microseconds.
        compute_us: Time of a step that does not communicate; at least the last ready time.
        gathered: Positions of the tensors that are gathered (allgather), not reduced.

    Raises:
        InvalidSettingError: Lengths differ, or times are not ascending.
    """

    sizes: tuple[int, ...]
    ready_us: tuple[float, ...]
    compute_us: float
    gathered: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if not self.sizes or len(self.sizes) != len(self.ready_us):
            raise InvalidSettingError(
                f"expected a ready time for each of {len(self.sizes)} tensors (at least one), got "
                f"{len(self.ready_us)}"
            )
        times = [0.0, *self.ready_us, self.compute_us]
        if any(later < earlier for earlier, later in itertools.pairwise(times)):
            raise InvalidSettingError("expected ascending ready times, all within compute_us")

    @property
    def payload_bytes(self) -> int:
        """Bytes of the step's collectives."""
        return sum(self.sizes)

    @classmethod
    def spread(
        cls,
        sizes: Sequence[int],
        *,
        compute_us: float,
        after_us: float = 0.0,
        gathered: Sequence[int] = (),
    ) -> Workload:
        """Return a workload whose ready times follow from the tensors' sizes.

        Args:
            sizes: ``(n,)`` bytes in the order of the backward pass.
            compute_us: Forward and backward pass, in microseconds.
            after_us: Computation after the last gradient is ready, e.g. none.
            gathered: Positions of the tensors that are gathered.
        """
        forward = FORWARD_SHARE * compute_us
        backward = compute_us - forward
        total = max(1, sum(sizes))
        work = [LAYER_SHARE / len(sizes) + (1 - LAYER_SHARE) * size / total for size in sizes]
        ready = [min(compute_us, forward + backward * w) for w in itertools.accumulate(work)]
        return cls(
            sizes=tuple(int(size) for size in sizes),
            ready_us=tuple(ready),
            compute_us=compute_us + after_us,
            gathered=frozenset(gathered),
        )
