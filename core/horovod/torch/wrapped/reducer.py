"""Watches the parameters of one optimizer and reduces their gradients as they become complete.

A hook on every parameter counts its backward passes. In the last one its group is started, while
the backward pass goes on; ``finish`` starts what is missing and waits for all.

A rank that lacks a gradient takes part with zeros, and has to know whether the others' are sparse:
these travel as rows. In the first ``finish``, and as long as no rank has had the gradient of some
matrix, the ranks tell each other what they have.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from horovod.common import basics
from horovod.common.operation import forget_with_the_engine
from horovod.torch import operations
from horovod.torch.collectives.repeated import RepeatedAllreduces
from horovod.torch.wrapped.batch import Batch
from horovod.torch.wrapped.gradients import Gradient, Group, Options

_watched: Any = WeakTensorKeyDictionary()
"""{parameter: (weak reference to the reducer that watches it, its hook)}."""


BATCH_GROUPS = 16
"""Complete gradients are handed to the engine when they are so many, or enough bytes
(``Group.batch_bytes``): a call for each would cost more than it saves."""


class Reducer:
    """Reduces the gradients of one optimizer. Knows nothing of the optimizer itself.

    Args:
        passes: Backward passes per reduction.
        options: How the gradients travel.

    Attributes:
        pending: Whether gradients of this step are complete, accumulated or on their way.
    """

    def __init__(self, passes: int, options: Options) -> None:
        self.passes = passes
        self.options = options
        self.pending = False
        self._gradients: dict[torch.Tensor, Gradient] = {}
        self._frozen: dict[torch.Tensor, str] = {}
        self._groups: list[Group] = []
        self._complete: list[Group] = []
        self._complete_bytes = 0
        self._started: list[Group] = []
        self._batches: list[Batch] = []
        self._watched_versions: list[tuple[Gradient, torch.Tensor, int]] = []
        """(first gradient for each call to the engine, its tensor, how often that had changed)"""
        self._known: dict[Group, tuple[list[Group], RepeatedAllreduces]] = {}
        """{first group: what was started together last time, and how}"""
        forget_with_the_engine(self)

    def watch(self, parameter: torch.Tensor, name: str) -> None:
        """**Local**, every rank alike. Reduce the gradient of ``parameter`` from now on.

        A parameter that needs no gradient is watched from the first ``finish`` at which it does.
        Another reducer that watches it gives it up.
        """
        if not parameter.requires_grad:
            self._frozen[parameter] = name
            return
        reference, hook = _watched.get(parameter, (_nobody, None))
        if hook is not None:
            hook.remove()
        previous = reference()
        if previous is not None:
            previous._give_up(parameter)
        gradient = Gradient(parameter, name, self.passes)
        self._gradients[parameter] = gradient
        self._groups.append(Group([gradient], self.options))
        us = weakref.ref(self)
        register: Any = parameter.register_post_accumulate_grad_hook
        _watched[parameter] = (us, register(_hook(us, weakref.ref(gradient))))

    def group(self, groups: Sequence[Sequence[torch.Tensor]]) -> None:
        """**Local**, every rank alike. Reduce the parameters of each of ``groups`` together."""
        self._known.clear()
        for parameters in groups:
            members = [self._gradients[p] for p in parameters if p in self._gradients]
            if len(members) > 1:
                singles = {id(member.group) for member in members}
                self._groups = [group for group in self._groups if id(group) not in singles]
                self._groups.append(Group(members, self.options))

    @property
    def parameters(self) -> list[torch.Tensor]:
        """**Local.** The parameters that are watched."""
        return list(self._gradients)

    def set_passes(self, passes: int) -> None:
        """**Local**, every rank alike. Reduce in every ``passes``-th backward pass."""
        self.passes = passes
        for gradient in self._gradients.values():
            gradient.passes_left = passes

    def on_gradient(self, gradient: Gradient) -> None:
        """**Collective.** Count a backward pass; start the group of the last complete gradient."""
        if not self.pending:
            self.pending = True
            basics.engine().backward(True)
        gradient.passes_left -= 1
        if gradient.passes_left > 0:
            return
        if gradient.passes_left < 0:
            self._refuse(gradient)
        group = gradient.group
        group.missing -= 1
        if group.missing:
            return
        group.started = True
        complete = self._complete
        if not complete:
            self._watch_version(gradient)
        complete.append(group)
        self._complete_bytes += group.bytes
        if self._complete_bytes >= group.batch_bytes or len(complete) >= BATCH_GROUPS:
            self._start_complete()

    def start(self, parameter: torch.Tensor) -> None:
        """**Collective.** Start the group of ``parameter`` now, whatever passes are missing.

        Nothing happens where it is not watched, has no gradient or is on its way.
        """
        gradient = self._gradients.get(parameter)
        if gradient is None or not gradient.exists or gradient.group.started:
            return
        self.pending = gradient.group.started = True
        self._complete.append(gradient.group)
        self._start_complete()

    def finish(self, only_started: bool = False) -> None:
        """**Collective.** Start what is missing, wait for all, put the gradients in place.

        Args:
            only_started: Start nothing; passes that were accumulated so far do not count.

        Raises:
            HorovodInternalError: A reduction failed; the others are forgotten.
            AssertionError: Gradients were changed in place when they were complete and on their
                way, or about to be. All are reduced, of what they happened to be.
        """
        basics.engine().backward(False)
        changed = self._changed()
        if only_started:
            self._forget_passes()
        else:
            self._watch_thawed()
            self._agree_on_sparse()
            self._start_missing()
        self._start_complete()
        batches, self._batches = iter(self._batches), []
        started, self._started = iter(self._started), []
        self.pending = False
        try:
            for batch in batches:
                batch.finish(self.passes)
            for group in started:
                group.finish(self.passes)
        except BaseException:
            for batch in batches:
                batch.drop(self.passes)
            for group in started:
                group.drop(self.passes)
            raise
        if changed is not None:
            raise AssertionError(
                f"the gradient of {changed.name!r} was changed after loss.backward(), while it was "
                "on its way: the result is undefined. Call optimizer.synchronize() before "
                "gradients are clipped, scaled or added to, and then 'with "
                "optimizer.skip_synchronize(): optimizer.step()'"
            )

    def reset(self) -> None:
        """**Local.** Forget gradients on their way and passes counted."""
        for batch in self._batches:
            batch.drop(self.passes)
        self._batches, self._started = [], []
        self._complete, self._complete_bytes = [], 0
        self._watched_versions = []
        self.pending = False
        for group in self._groups:
            group.drop(self.passes)

    def forget(self) -> None:
        """**Local.** The engine has ended: forget what is of its ranks, and what was half done.

        A rank that is new does not know which gradients are sparse; all have to find out again.
        """
        self.reset()
        self._known.clear()
        for gradient in self._gradients.values():
            gradient.forget()

    def _start_complete(self) -> None:
        """Hand what is complete to the engine, dense gradients in one call per device."""
        complete, self._complete, self._complete_bytes = self._complete, [], 0
        if not complete or (self.options.as_they_are and self._start_again(complete)):
            return
        by_device: dict[int, tuple[list[Group], list[torch.Tensor]]] = {}
        for group in complete:
            tensor = group.outgoing_alone()
            if tensor is None:
                self._started.append(group)
                group.start()
                continue
            groups, tensors = by_device.setdefault(tensor.get_device(), ([], []))
            groups.append(group)
            tensors.append(tensor)
        for groups, tensors in by_device.values():
            hows = [group.alone for group in groups if group.alone is not None]
            allreduces = RepeatedAllreduces(hows)
            self._known[groups[0]] = groups, allreduces
            batch = Batch(groups)
            self._batches.append(batch)
            batch.start(allreduces, tensors)

    def _watch_version(self, gradient: Gradient) -> None:
        tensor = gradient.parameter.grad
        if tensor is not None:
            self._watched_versions.append((gradient, tensor, tensor._version))

    def _changed(self) -> Gradient | None:
        """Return a gradient that was changed in place since it was complete, if there is one.

        What changes gradients (clipping, a scale) changes them all, so one of each call to the
        engine is looked at.
        """
        watched, self._watched_versions = self._watched_versions, []
        for gradient, tensor, version in watched:
            if tensor._version != version and gradient.parameter.grad is tensor:
                return gradient
        return None

    def _start_again(self, groups: list[Group]) -> bool:
        """Start what was started together before; False: it is not the same now."""
        known, allreduces = self._known.get(groups[0], ([], None))
        if allreduces is None or known != groups:
            return False
        batch = Batch(groups)
        self._batches.append(batch)  # also when the engine refuses it
        if batch.start_again(allreduces):
            return True
        self._batches.pop()
        return False

    def _watch_thawed(self) -> None:
        for parameter in [p for p in self._frozen if p.requires_grad]:
            self.watch(parameter, self._frozen.pop(parameter))

    def _agree_on_sparse(self) -> None:
        """**Collective.** Tell each other which gradients are sparse, where that is not known."""
        unknown = [
            gradient
            for gradient in self._gradients.values()
            if not gradient.is_known and gradient.parameter.requires_grad
        ]
        if not unknown:
            return
        found = operations.allreduce(
            torch.tensor([gradient.layout for gradient in unknown], dtype=torch.int32),
            name=f"{unknown[0].name}.sparse",
            op=operations.Max,
            process_set=self.options.process_set,
        )
        for gradient, layout in zip(unknown, found.tolist(), strict=True):
            gradient.learn(layout)

    def _start_missing(self) -> None:
        for group in self._groups:
            if not group.started and any(member.exists for member in group.members):
                group.started = True
                self._complete.append(group)

    def _forget_passes(self) -> None:
        for group in self._groups:
            if not group.started:
                group.drop(self.passes)

    def _give_up(self, parameter: torch.Tensor) -> None:
        self._known.clear()
        group = self._gradients.pop(parameter).group
        group.drop(self.passes)
        group.members = [m for m in group.members if m.parameter is not parameter]
        group.missing = len(group.members)
        if not group.members:
            self._groups.remove(group)
        self._complete = [each for each in self._complete if each is not group]
        self._started = [each for each in self._started if each is not group]
        for batch in self._batches:
            batch.give_up(group)
        self.pending = bool(self._complete or self._started or self._batches)

    def _refuse(self, gradient: Gradient) -> None:
        gradient.passes_left = 0
        self._watched_versions = []  # the error says it all
        raise AssertionError(
            f"gradients of {gradient.name!r} were computed more than backward_passes_per_step "
            f"({self.passes}) times before optimizer.step() or optimizer.synchronize(); increase "
            "backward_passes_per_step to accumulate locally. If they come from another "
            "optimizer's loss (a GAN), freeze these parameters in its backward pass: "
            "requires_grad_(False); if this optimizer steps more rarely than another one, call its "
            "synchronize() after every backward pass; if a module is used twice under activation "
            "checkpointing or shares its parameters, checkpoint with use_reentrant=False"
        )


def _hook(
    reducer: weakref.ref[Reducer], gradient: weakref.ref[Gradient]
) -> Callable[[torch.Tensor], None]:
    """Return a hook that keeps neither alive: parameters live longer than optimizers."""

    def gradient_ready(_: torch.Tensor) -> None:
        watching, ready = reducer(), gradient()
        if watching is not None and ready is not None:
            watching.on_gradient(ready)

    return gradient_ready


def _nobody() -> None:
    """Stand for the reference to a reducer where there is none."""
