"""Where an operation is about to stand: in eager mode, in a graph, or where it cannot be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

Function = TypeVar("Function", bound=Callable[..., Any])


def as_it_stands(function: Function) -> Function:
    """**Local.** Return ``function``, which AutoGraph leaves alone in functions that are traced."""
    return tf.autograph.experimental.do_not_convert(function)  # type: ignore[no-any-return]


def in_session_graph() -> bool:
    """**Local.** Return whether a graph of a TensorFlow 1 session is being built."""
    return not (tf.executing_eagerly() or tf.compat.v1.get_default_graph().building_function)


def refuse_xla(what: str) -> None:
    """**Local.** Raise where the graph that is being built is one for XLA, or part of one.

    Args:
        what: The caller, the beginning of the sentence.

    Raises:
        RuntimeError: It is.
    """
    if tf.executing_eagerly():
        return
    from tensorflow.python.ops import control_flow_util

    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise RuntimeError(
            f"{what}: XLA cannot compile communication; pass jit_compile=False to "
            "model.compile() or tf.function()"
        )


def unique_label(label: str) -> str:
    """**Local**, every rank alike. Return ``label``, with a number where the graph has it already.

    Names are those of operations that may be in flight together: those of one graph.
    """
    if tf.executing_eagerly():
        return label
    graph = tf.compat.v1.get_default_graph()
    labels: Counter[str] | None = getattr(graph, "_horovod_labels", None)
    if labels is None:
        labels = graph._horovod_labels = Counter()
    number = labels[label]
    labels[label] += 1
    return label if number == 0 else f"{label}.again{number}"


def keep_with_graph(kept: object) -> None:
    """**Local.** Let ``kept`` live as long as the graph that is being built, or one around it."""
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not None:
        if not hasattr(graph, "_horovod_kept"):
            graph._horovod_kept = []
        graph._horovod_kept.append(kept)
        graph = getattr(graph, "outer_graph", None)
        if graph is not None and not graph.building_function:
            break
