"""States of variables of TensorFlow and Keras, of whatever backend, and of plain objects."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from horovod.common import basics
from horovod.common.arrays import Array
from horovod.common.objects import broadcast_object
from horovod.common.variables import Variable, broadcast_variables
from horovod.elastic.state import ObjectState


class VariablesState(ObjectState):
    """What a training keeps while ranks come and go: variables, and attributes as ``ObjectState``.

    A commit copies the variables into memory of the host that is kept.

    Args:
        variables: Returns the variables that there are now, in the same order on all ranks.
        **kwargs: {attribute: first value}.
    """

    def __init__(self, variables: Callable[[], Sequence[Variable]], **kwargs: Any) -> None:
        self._find_variables = variables
        self._saved_values: list[Array] = []
        send = functools.partial(broadcast_object, name="elastic.objects")
        super().__init__(bcast_object=send, get_rank=basics.rank, **kwargs)
        self.save()

    def restore(self) -> None:
        """**Local.** Go back to the last commit; variables that were not there yet stay."""
        for variable, value in zip(self._find_variables(), self._saved_values, strict=False):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        """**Collective.** Take over rank 0's variables and attributes, and save them.

        Raises:
            ValueError: The ranks' variables differ, or rank 0's attributes cannot be sent.
            HorovodInternalError: A rank has died.
        """
        broadcast_variables(self._find_variables(), root_rank=0)
        super().sync()

    def saved_content(self) -> Mapping[str, Any]:
        """**Local.** As of ``State``."""
        return {**super().saved_content(), "variables": self._saved_values}

    def load_content(self, content: Mapping[str, Any]) -> None:
        """**Local.** As of ``State``."""
        variables, values = self._find_variables(), content["variables"]
        shapes = [tuple(value.shape) for value in values]
        ours = [tuple(variable.numpy().shape) for variable in variables]
        if shapes != ours:
            raise ValueError(
                f"expected {len(ours)} variables of this script's shapes, got {len(shapes)}; build "
                "the model before the state"
            )
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        super().load_content(content)

    def _save(self) -> None:
        kept = []
        for i, variable in enumerate(self._find_variables()):
            value = np.asarray(variable.numpy())
            known = self._saved_values[i] if i < len(self._saved_values) else None
            if known is None or known.shape != value.shape or known.dtype != value.dtype:
                known = np.empty_like(value)
            np.copyto(known, value)
            kept.append(known)
        self._saved_values = kept
        super()._save()
