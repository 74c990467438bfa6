"""Gradient tapes whose gradients are reduced over the ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from horovod._keras.api import weights_of_layers
from horovod.common.gradients import Options, make_options
from horovod.common.process_set import ProcessSet, global_process_set
from horovod.common.reduce_ops import Average
from horovod.tensorflow.compression import Compression, Compressor
from horovod.tensorflow.gradients import Reduction
from horovod.tensorflow.tracing import as_it_stands

__all__ = ["DistributedGradientTape", "PartialDistributedGradientTape"]


class _DistributedTape(tf.GradientTape):  # type: ignore[misc]
    """Records what the tape that it was made from has recorded, and goes on doing so."""

    _horovod: Reduction

    def register_local_source(self, source: Any) -> None:
        """**Local**, every rank alike. Leave the gradient of ``source`` to this rank alone."""
        self._horovod.register_local(source)

    @as_it_stands
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        **arguments: Any,
    ) -> Any:
        """**Collective.** Return the reduced gradients of ``target`` by ``sources``.

        Args:
            target: As of ``tf.GradientTape.gradient``.
            sources: Variables or tensors, in any nested structure.
            output_gradients: As there.
            use_generic_names: Accepted for compatibility; names are the same on all ranks anyway.
            **arguments: As there.
        """
        gradients = super().gradient(target, sources, output_gradients, **arguments)
        reduced = self._horovod.reduce(tf.nest.flatten(gradients), tf.nest.flatten(sources))
        return tf.nest.pack_sequence_as(sources, reduced)

    def get_local_and_global_gradients(
        self, target: Any, sources: Any, **arguments: Any
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """**Collective.** Return what ``gradient`` does, as (source, gradient) pairs.

        Args:
            target: As of ``gradient``.
            sources: As there.
            **arguments: As there.

        Returns:
            Those of local sources, then those of the others.
        """
        flat = tf.nest.flatten(sources)
        pairs = list(zip(flat, self.gradient(target, flat, **arguments), strict=True))
        is_local = self._horovod.is_local
        return [p for p in pairs if is_local(p[0])], [p for p in pairs if not is_local(p[0])]


def DistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """**Local.** Return a tape like ``gradtape`` whose gradients are reduced.

    Args:
        gradtape: A ``tf.GradientTape``, usually one that has recorded.
        device_dense: Accepted for compatibility; tensors stay where they are.
        device_sparse: As ``device_dense``.
        compression: How dense gradients travel.
        sparse_as_dense: Reduce sparse gradients as dense ones; else their rows are gathered.
        op: Average, Sum, Min, Max, Product or Adasum.
        gradient_predivide_factor: With Average: divide by it before the sum, by size / it after.
        num_groups: Older name of ``groups`` as a number.
        groups: Gradients that are reduced together: a number of groups, or lists of variables.
        process_set: Ranks that train together; on others gradients stay as they are.
        scale_local_gradients: Divide gradients of local sources by the number of ranks, as if
            the others' were zero.

    Raises:
        ValueError: An argument is unsuitable.
    """
    options = make_options(
        "DistributedGradientTape",
        compression=compression,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        sparse_as_dense=sparse_as_dense,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    return _wrapped(gradtape, options)


def PartialDistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """**Local.** As ``DistributedGradientTape``, but for the layers that every rank has alone.

    Args:
        gradtape: As there, and so are all arguments but one.
        device_dense: As there.
        device_sparse: As there.
        compression: As there.
        sparse_as_dense: As there.
        op: As there.
        gradient_predivide_factor: As there.
        num_groups: As there.
        groups: As there.
        process_set: As there.
        local_layers: A Keras layer or several, whose gradients are not reduced.
        scale_local_gradients: As there.

    Raises:
        ValueError: An argument is unsuitable.
    """
    tape = DistributedGradientTape(
        gradtape,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    for variable in weights_of_layers(local_layers):
        tape.register_local_source(variable)
    return tape


def _wrapped(tape: Any, options: Options) -> _DistributedTape:
    """Return a tape of a subclass of the class of ``tape`` that shares all it has."""
    own = type(tape)
    bases = (_DistributedTape,) if own is tf.GradientTape else (_DistributedTape, own)
    wrapped: Any = object.__new__(type(own.__name__, bases, {}))
    vars(wrapped).update(vars(tape))
    wrapped._horovod = Reduction(options, None, "hvd.DistributedGradientTape")
    return wrapped  # type: ignore[no-any-return]
