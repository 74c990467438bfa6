"""Dense gradients that were handed to the engine in one call, each reduced for itself."""

from __future__ import annotations

import torch

from horovod.torch import handles
from horovod.torch.collectives.repeated import start_all
from horovod.torch.wrapped.gradients import Group


class Batch:
    """Groups of one gradient each, which travel by their ``single``."""

    __slots__ = ("_groups", "_handle", "_tensors")

    def __init__(self) -> None:
        self._groups: list[Group | None] = []
        self._tensors: list[torch.Tensor] = []
        self._handle: int | None = None

    def add(self, group: Group, tensor: torch.Tensor) -> None:
        """**Local.** Before ``start``: ``tensor`` is what travels for ``group``."""
        self._groups.append(group)
        self._tensors.append(tensor)

    def start(self) -> None:
        """**Collective.** Start to reduce all of them."""
        singles = [group.single for group in self._groups if group is not None]
        self._handle = start_all([each for each in singles if each is not None], self._tensors)

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
