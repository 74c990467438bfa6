"""Dense gradients that were handed to the engine in one call, each reduced for itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from horovod.torch import handles
from horovod.torch.collectives.repeated import RepeatedAllreduces
from horovod.torch.wrapped.gradients import Group


class Batch:
    """Groups of one gradient each, on their way.

    Args:
        groups: In the order of the allreduces; ``Group.alone`` is set.
    """

    __slots__ = ("_groups", "_handle", "_tensors")

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups: list[Group | None] = list(groups)
        self._tensors: list[Any] = []
        self._handle: int | None = None

    def start(self, allreduces: RepeatedAllreduces, tensors: list[torch.Tensor]) -> None:
        """**Collective.** Start to reduce ``tensors``, what travels for the groups."""
        self._tensors = tensors
        self._handle = allreduces.start(tensors)

    def start_again(self, allreduces: RepeatedAllreduces) -> bool:
        """**Collective.** Start to reduce the gradients as they are, if they are like the last."""
        self._tensors = [g.members[0].parameter.grad for g in self._groups if g is not None]
        self._handle = allreduces.start_again(self._tensors)
        return self._handle is not None

    def finish(self, passes: int) -> None:
        """**Local.** Wait for all, put them in place and expect ``passes`` passes again.

        Raises:
            HorovodInternalError: A reduction failed; the groups are ready for the next step.
        """
        groups, handle = self._groups, self._handle
        self._groups, self._handle = [], None
        if handle is None:  # it could not be started
            return _forget(groups, passes)
        try:
            handles.synchronize(handle)
        except BaseException:
            _forget(groups, passes)
            raise
        for group, tensor in zip(groups, self._tensors, strict=True):
            if group is not None:
                group.put_alone(tensor, passes)

    def drop(self, passes: int) -> None:
        """**Local.** Forget what is on its way."""
        if self._handle is not None:
            handles.drop(self._handle)
        _forget(self._groups, passes)
        self._groups, self._handle = [], None

    def give_up(self, group: Group) -> None:
        """**Local.** The result of ``group`` is of no use any more."""
        self._groups = [None if each is group else each for each in self._groups]


def _forget(groups: list[Group | None], passes: int) -> None:
    for group in groups:
        if group is not None:
            group.drop(passes)
