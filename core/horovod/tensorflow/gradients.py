"""Gradients of TensorFlow are reduced: those of a tape's sources, or of an optimizer's variables.

In a function every gradient is an operation of its own, which starts as soon as it is there. In
eager mode they are there together, and travel together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from horovod.common.compression import AsTuned, NoneCompressor
from horovod.common.gradients import (
    Options,
    note_reduction,
    operation_names,
    positions_of_groups,
    underlying,
)
from horovod.common.reduce_ops import Adasum, Min
from horovod.tensorflow import operations
from horovod.tensorflow.gradient_aggregation import Accumulator
from horovod.tensorflow.tracing import as_it_stands, refuse_xla, unique_label
from horovod.tensorflow.watching import watch_of


class Reduction:
    """How the gradients of one optimizer or tape are reduced.

    Args:
        options: How they travel.
        label: Beginning of the operations' names, the same on all ranks; None: it is found from
            the variables.
        caller: What a message begins with.

    Attributes:
        accumulator: Sums the gradients of several passes; None: there is one pass.
    """

    def __init__(self, options: Options, label: str | None, caller: str) -> None:
        self._options = options
        self._label = label
        self._caller = caller
        self._local: dict[int, Any] = {}
        self.accumulator = (
            Accumulator(options.passes, options.average_passes) if options.passes > 1 else None
        )

    def register_local(self, variable: Any) -> None:
        """**Local**, every rank alike. Do not reduce the gradient of ``variable``."""
        self._local[id(underlying(variable))] = variable

    def is_local(self, variable: Any) -> bool:
        """**Local.** Return whether the gradient of ``variable`` is not reduced."""
        return id(underlying(variable)) in self._local

    @as_it_stands
    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """**Collective.** Return the reduced ``gradients``, None where there is none.

        Args:
            gradients: Tensors, ``tf.IndexedSlices`` or None.
            variables: Whose they are.

        Raises:
            RuntimeError: XLA would compile this.
        """
        options, result = self._options, list(gradients)
        note_reduction()
        if not options.communicates:
            return result
        refuse_xla(self._caller)
        there = [i for i, gradient in enumerate(result) if gradient is not None]
        local = {i for i in there if self.is_local(variables[i])}
        if options.scale_local_gradients:
            for i in local:
                result[i] = _divided(result[i], options.process_set.size() or 1)
        wanted = [i for i in there if i not in local]
        if options.sparse_as_dense:
            for i in wanted:
                result[i] = tf.convert_to_tensor(result[i])
        weights = [variables[i] for i in wanted if hasattr(variables[i], "assign")]
        if weights:
            watch = watch_of(weights, options.process_set)
            label = unique_label(self._label or f"tape.{watch.number}")
            with watch.before_reduction():
                self._reduce(result, wanted, variables, label)
        elif wanted:  # gradients by tensors
            self._reduce(result, wanted, variables, unique_label(self._label or "tape"))
        return result

    @as_it_stands
    def accumulate(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """**Collective** in the last of several passes. Add ``gradients`` to those before.

        Returns:
            The reduced sums in the last pass, else zeros; None where there is no gradient.
        """
        assert self.accumulator is not None
        return self.accumulator.add(gradients, variables, self.reduce)

    @as_it_stands
    def apply_if_complete(
        self, apply: Callable[[], object], otherwise: Callable[[], object] = lambda: None
    ) -> object:
        """**Local.** Call ``apply`` after the last of several passes, else ``otherwise``.

        Returns:
            What ``apply`` has returned where there is one pass, else an operation in a graph.
        """
        if self.accumulator is None:
            return apply()
        return self.accumulator.apply_if_complete(apply, otherwise)

    @as_it_stands
    def agree(self, verdict: Any) -> Any:
        """**Collective.** Return whether ``verdict``, a boolean tensor, is true on all ranks."""
        if not self._options.communicates:
            return verdict
        name = unique_label(f"{self._label or self._caller}.agree")
        own, members = tf.cast(verdict, tf.int32), self._options.process_set
        agreed = operations.allreduce(
            own, op=Min, name=name, process_set=members, ignore_name_scope=True
        )
        return agreed > 0

    def _reduce(
        self, result: list[Any], wanted: Sequence[int], variables: Sequence[Any], label: str
    ) -> None:
        """Replace the ``wanted`` ones of ``result``."""
        options = self._options
        names = operation_names(label, variables)
        is_plain = options.compression is NoneCompressor and options.op != Adasum
        arguments: dict[str, Any] = {
            "op": options.op,
            "prescale_factor": options.prescale_factor,
            "postscale_factor": options.postscale_factor,
            "compression": AsTuned if is_plain else options.compression,
            "process_set": options.process_set,
            "ignore_name_scope": True,
        }
        sparse = [i for i in wanted if isinstance(result[i], tf.IndexedSlices)]
        dense = [i for i in wanted if i not in set(sparse)]
        groups = positions_of_groups(options.groups, variables, dense)
        if options.groups is None and tf.executing_eagerly():
            groups = [dense]
        for group in groups:
            if len(group) > 1:
                tensors, name = [result[i] for i in group], f"{label}.from{group[0]}"
                reduced = operations.grouped_allreduce(tensors, name=name, **arguments)
                for i, tensor in zip(group, reduced, strict=True):
                    result[i] = tensor
        alone = [group[0] for group in groups if len(group) == 1]
        for i in [*alone, *sparse]:
            result[i] = operations.allreduce(result[i], name=names[i], **arguments)


def _divided(gradient: Any, number: int) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values / tf.cast(number, gradient.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient / tf.cast(number, gradient.dtype)
