"""Weights that nobody has broadcast are noticed, in eager mode and in functions."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from horovod.common.gradients import next_number, underlying
from horovod.common.operation import Kept
from horovod.common.process_set import ProcessSet
from horovod.common.variables import Watch
from horovod.tensorflow.tracing import in_session_graph, keep_with_graph


class WeightWatch:
    """A ``Watch`` of the weights of a graph or an eager loop.

    In a function it is one operation that does nothing once there is nothing left to be seen.
    """

    def __init__(self, variables: Sequence[Any], process_set: ProcessSet, number: int) -> None:
        self.number = number
        self._watch = Watch(variables, process_set, number)
        self._flag: Any = None

    @contextmanager
    def before_reduction(self) -> Iterator[None]:
        """**Collective**, now and then. What is done within this context comes after a look."""
        if tf.executing_eagerly():
            self._watch.look()
            yield
            return
        if (
            in_session_graph()
        ):  # where a variable of ours would have to be initialised by the script
            yield
            return
        with tf.control_dependencies([self._look_in_graph()]):
            yield

    def _look_in_graph(self) -> Any:
        with tf.init_scope():
            if self._flag is None:
                self._flag = tf.Variable(self._watch.done, trainable=False, name="weights_watched")
        keep_with_graph(self._flag)
        flag = self._flag

        def look() -> Any:
            done = tf.numpy_function(self._watch.look, [], tf.bool)
            return flag.assign(tf.reshape(done, ()), read_value=True)

        return tf.cond(flag, flag.read_value, lambda: tf.identity(look()))


_Key = tuple[int, int, int]
_watches: Kept[_Key, tuple[weakref.ref[Any], WeightWatch]] = Kept()
"""By the first variable, by how many there are and by their process set."""


def watch_of(variables: Sequence[Any], process_set: ProcessSet) -> WeightWatch:
    """**Local**, every rank alike. Return the watch of ``variables``, one at least.

    It is the same one for the same variables, and never that of others that are gone: its number is
    part of names that all ranks have to know.
    """
    first = underlying(variables[0])
    key = id(first), len(variables), process_set.process_set_id or 0
    known, watch = _watches.get(key, (None, None))
    if known is None or watch is None or known() is not first:
        watch = WeightWatch(variables, process_set, next_number("watch", process_set))
        _watches.keep(key, (weakref.ref(first), watch))
    return watch
