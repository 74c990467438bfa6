"""Functions that ``horovod.tensorflow.keras`` and ``horovod.keras`` offer alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from horovod._keras.optimizer import wrap
from horovod.common.compression import Compressor, NoneCompressor
from horovod.common.gradients import make_options
from horovod.common.process_set import ProcessSet, global_process_set
from horovod.common.reduce_ops import Average


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = NoneCompressor,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """**Local**, every rank alike. Return ``optimizer`` with gradients that are reduced.

    The result is of a subclass of the optimizer's own class and shares its state.

    Args:
        optimizer: Of Keras 3 or tf-keras, also one that scales the loss.
        name: Accepted for compatibility: the optimizer keeps its name.
        device_dense: Accepted for compatibility; tensors stay where they are.
        device_sparse: As ``device_dense``.
        compression: How dense gradients travel.
        sparse_as_dense: Reduce sparse gradients as dense ones; else their rows are gathered.
        gradient_predivide_factor: With Average: divide by it before the sum, by size / it after.
        op: Average, Sum, Min, Max or Product.
        backward_passes_per_step: Passes whose gradients are summed locally per reduction.
        average_aggregated_gradients: Divide that sum by the number of passes.
        num_groups: Older name of ``groups`` as a number.
        groups: Gradients that are reduced together: a number of groups, or lists of variables.
        process_set: Ranks that train together; on other ranks gradients stay as they are.
        scale_local_gradients: Divide gradients of local variables by the number of ranks, as if
            the others' were zero.

    Raises:
        ValueError: An argument is unsuitable.
    """
    options = make_options(
        "DistributedOptimizer",
        compression=compression,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        sparse_as_dense=sparse_as_dense,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        passes=backward_passes_per_step,
        average_passes=average_aggregated_gradients,
        scale_local_gradients=scale_local_gradients,
    )
    return wrap(optimizer, options, name)


def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = NoneCompressor,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """**Local**, every rank alike. As ``DistributedOptimizer``, but for layers that are local.

    Args:
        optimizer: As there, and so are all arguments but one.
        name: As there.
        device_dense: As there.
        device_sparse: As there.
        compression: As there.
        sparse_as_dense: As there.
        gradient_predivide_factor: As there.
        op: As there.
        backward_passes_per_step: As there.
        average_aggregated_gradients: As there.
        groups: As there.
        process_set: As there.
        local_layers: A layer or several, built, whose gradients are not reduced.
        scale_local_gradients: As there.

    Raises:
        ValueError: An argument is unsuitable.
    """
    weights = weights_of_layers(local_layers)
    wrapped = DistributedOptimizer(
        optimizer,
        name,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    for variable in weights:
        wrapped.register_local_var(variable)
    return wrapped


def weights_of_layers(layers: Any) -> list[Any]:
    """**Local.** Return the trainable weights of ``layers``: None, a layer, or several.

    Raises:
        ValueError: Something is no layer.
    """
    if layers is None:
        return []
    several: Iterable[Any] = [layers] if hasattr(layers, "trainable_weights") else layers
    several = list(several)
    for layer in several:
        if not hasattr(layer, "trainable_weights"):
            raise ValueError(f"local_layers: expected Keras layers, got {layer!r}")
    return [variable for layer in several for variable in layer.trainable_weights]


def load_model_by(
    load: Callable[..., Any],
    filepath: Any,
    custom_optimizers: Iterable[type] | None,
    custom_objects: Mapping[str, Any] | None,
    compression: type[Compressor],
) -> Any:
    """**Local**, every rank alike. Return a saved model with a distributed optimizer.

    Args:
        load: Keras's ``load_model``.
        filepath: Of the model, saved with or without Horovod.
        custom_optimizers: Classes of optimizers that are not Keras's own.
        custom_objects: {name: class or function} of anything else.
        compression: How gradients travel.
    """
    objects = {each.__name__: each for each in custom_optimizers or ()}
    model = load(filepath, custom_objects={**objects, **(custom_objects or {})})
    if getattr(model, "optimizer", None) is not None:
        model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
    return model


def broadcast_global_variables(root_rank: int) -> NoReturn:
    """Raise: only TensorFlow 1 knows what all variables are.

    Raises:
        RuntimeError: Always.
    """
    raise RuntimeError(
        "hvd.broadcast_global_variables: sessions of TensorFlow 1 are not served; give "
        "model.fit() the callback BroadcastGlobalVariablesCallback(root_rank)"
    )
