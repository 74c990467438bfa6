"""Gradients of several backward passes are summed on each rank before they are reduced.

All of it stands in variables, so that a function that was traced once counts its passes. Sparse
gradients are summed as dense ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from horovod.common.gradients import underlying

Reduce = Callable[[Sequence[Any], Sequence[Any]], list[Any]]


class Accumulator:
    """Sums of the gradients since the last reduction.

    Args:
        passes: Passes per reduction.
        average: Divide the sum by their number.

    Attributes:
        passes: Passes per reduction.
        counter: Passes since the last reduction, a variable; None before the first one.
    """

    def __init__(self, passes: int, average: bool) -> None:
        self.passes = passes
        self._average = average
        self._sums: dict[int, Any] = {}
        self._variables: list[Any] = []
        self.counter: Any = None

    def add(self, gradients: Sequence[Any], variables: Sequence[Any], reduce: Reduce) -> list[Any]:
        """**Collective** in the last pass. Add ``gradients``; then return what ``reduce`` gives.

        Args:
            gradients: Of this pass, None where there is none.
            variables: Whose they are.
            reduce: Takes sums and variables.

        Returns:
            Zeros in all passes but the last one.
        """
        there = [i for i, gradient in enumerate(gradients) if gradient is not None]
        of = [variables[i] for i in there]
        with tf.init_scope():
            sums = [self._sum_of(variable) for variable in of]
            if self.counter is None:
                self.counter = tf.Variable(0, dtype=tf.int32, trainable=False, name="passes")
        for i, total in zip(there, sums, strict=True):
            if isinstance(gradients[i], tf.IndexedSlices):
                total.scatter_add(gradients[i])
            else:
                total.assign_add(tf.cast(gradients[i], total.dtype))
        count = self.counter.assign_add(1, read_value=True)
        done = tf.cond(
            tf.identity(count) >= self.passes,
            lambda: self._finish(sums, of, reduce),
            lambda: [tf.zeros_like(total) for total in sums],
        )
        result: list[Any] = [None] * len(gradients)
        for i, tensor in zip(there, done, strict=True):
            result[i] = tensor
        return result

    def forget(self) -> None:
        """**Local**, in eager mode. Begin anew, whatever was summed."""
        if self.counter is not None:
            self.counter.assign(0)
        for total in self._sums.values():
            total.assign(tf.zeros_like(total))

    def apply_if_complete(
        self, apply: Callable[[], object], otherwise: Callable[[], object]
    ) -> object:
        """**Local.** Call ``apply`` if the last ``add`` has reduced, else ``otherwise``.

        Returns:
            The operation that does it, in a graph.
        """

        def then(call: Callable[[], object]) -> Callable[[], Any]:
            def branch() -> Any:
                call()
                return tf.constant(0)

            return branch

        done = tf.cond(tf.equal(self.counter.read_value(), 0), then(apply), then(otherwise))
        return None if tf.executing_eagerly() else done.op

    def _sum_of(self, variable: Any) -> Any:
        key = id(underlying(variable))
        if key not in self._sums:
            zeros = tf.zeros(variable.shape, variable.dtype)
            self._sums[key] = tf.Variable(zeros, trainable=False, name="gradient_sum")
            self._variables.append(variable)  # whose id must not come again
        return self._sums[key]

    def _finish(self, sums: Sequence[Any], variables: Sequence[Any], reduce: Reduce) -> list[Any]:
        values = [tf.identity(total.read_value()) for total in sums]
        if self._average:
            values = [value / tf.cast(self.passes, value.dtype) for value in values]
        for total in sums:
            total.assign(tf.zeros_like(total))
        self.counter.assign(0)
        return [tf.identity(tensor) for tensor in reduce(values, variables)]
