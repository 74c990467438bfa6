"""The state of a PyTorch training: models, optimizers and samplers without pickling, and objects.

What is how is up to *handlers*, by the type of the attribute; ``set_handler_registry`` adds own.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from horovod.common import basics
from horovod.common.exceptions import HorovodInternalError
from horovod.elastic.state import ObjectState, expect_names
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.elastic.snapshot import Snapshot, unpacked
from horovod.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)


class StateHandler:
    """Keeps one attribute of a state.

    Args:
        value: The attribute's value.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def save(self) -> None:
        """**Local.** Copy the value's state into host memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """**Local.** Give the value the state that was saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """**Collective.** Give the value rank 0's state."""
        raise NotImplementedError

    def set_value(self, value: Any) -> None:
        """**Local.** Keep ``value`` instead, and save it."""
        self.value = value
        self.save()

    def reset(self) -> None:
        """**Local.** The ranks have changed."""

    def saved_content(self) -> Any:
        """**Local.** Return what was saved last as plain values, for a file."""
        raise NotImplementedError(
            f"an attribute that {type(self).__name__} keeps cannot be written to a file: the "
            "handler has no saved_content()"
        )

    def load_content(self, content: Any) -> None:
        """**Local.** Take over what ``saved_content`` has returned."""
        raise NotImplementedError(f"{type(self).__name__} has no load_content()")


class _Stateful(StateHandler):
    """Keeps anything that has ``state_dict`` and ``load_state_dict``."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._saved = Snapshot()
        self.save()

    def save(self) -> None:
        """**Local.** As of ``StateHandler``."""
        self._saved.take(self.value.state_dict())

    def restore(self) -> None:
        """**Local.** As of ``StateHandler``."""
        self.value.load_state_dict(self._saved.fresh())

    def sync(self) -> None:
        """**Collective.** As of ``StateHandler``."""
        self.value.load_state_dict(broadcast_object(self.value.state_dict()))

    def saved_content(self) -> Any:
        """**Local.** As of ``StateHandler``."""
        return self._saved.packed()

    def load_content(self, content: Any) -> None:
        """**Local.** As of ``StateHandler``."""
        self.value.load_state_dict(unpacked(content))


class ModelStateHandler(_Stateful):
    """Keeps a module: parameters, buffers and what else its ``state_dict`` has."""

    def restore(self) -> None:
        """**Local.** As of ``StateHandler``; gradients are of a step that never came to its end."""
        self.value.load_state_dict(self._saved.view())
        self.reset()

    def sync(self) -> None:
        """**Collective.** As of ``StateHandler``."""
        broadcast_parameters(self.value.state_dict(), root_rank=0)

    def reset(self) -> None:
        """**Local.** Forget gradients: what other ranks have added to theirs nobody knows."""
        _forget_gradients(self.value.parameters())


class OptimizerStateHandler(_Stateful):
    """Keeps an optimizer, wrapped or not."""

    def restore(self) -> None:
        """**Local.** As of ``StateHandler``; what is on its way is forgotten."""
        super().restore()
        self.reset()

    def sync(self) -> None:
        """**Collective.** As of ``StateHandler``."""
        broadcast_optimizer_state(self.value, root_rank=0)

    def reset(self) -> None:
        """**Local.** Forget gradients, as of ``ModelStateHandler``."""
        for group in self.value.param_groups:
            _forget_gradients(group["params"])


class SamplerStateHandler(_Stateful):
    """Keeps an ``ElasticSampler``."""

    def reset(self) -> None:
        """**Local.** Spread what is left of the epoch over the new ranks."""
        self.value.reset()


def _forget_gradients(parameters: Iterable[torch.Tensor]) -> None:
    for parameter in parameters:
        parameter.grad = None


Registry = Sequence[tuple[type, type[StateHandler]]]

_handler_registry: Registry = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
    (torch.optim.lr_scheduler.LRScheduler, _Stateful),
    (torch.amp.GradScaler, _Stateful),
]


def get_handler_registry() -> Registry:
    """**Local.** Return pairs of a type and the handler of attributes of that type, first first."""
    return _handler_registry


def set_handler_registry(registry: Registry) -> None:
    """**Local**, every rank alike. Use ``registry`` for states that are made from now on."""
    global _handler_registry
    _handler_registry = registry


def _find_handler(value: Any) -> type[StateHandler] | None:
    return next((found for kind, found in _handler_registry if isinstance(value, kind)), None)


class TorchState(ObjectState):
    """What a training keeps while ranks come and go, each thing an attribute.

    A commit copies tensors once, into memory of the host that is kept; nothing is pickled. Models,
    optimizers, samplers, learning rate schedulers and gradient scalers have handlers, anything else
    is an object of ``ObjectState``.

    Args:
        model: Of the training.
        optimizer: Of the training, wrapped or not.
        **kwargs: {attribute: first value}: more models, optimizers, samplers, counters.
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        values = {**kwargs, "model": model, "optimizer": optimizer}
        self._handlers: dict[str, StateHandler] = {}
        objects = {}
        for name, value in values.items():
            handler = _find_handler(value)
            if handler is None:
                objects[name] = value
            else:
                object.__setattr__(self, name, value)
                self._handlers[name] = handler(value)
        send = functools.partial(broadcast_object, name="elastic.objects")
        super().__init__(bcast_object=send, get_rank=basics.rank, **objects)

    def restore(self) -> None:
        """**Local.** Go back to the last commit; a step that was begun is forgotten."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """**Collective.** Take over rank 0's state, and save it.

        Raises:
            ValueError: The ranks' attributes differ, or rank 0's cannot be sent.
            HorovodInternalError: A rank has died.
        """
        by_rank = allgather_object(sorted(self._handlers), "elastic.attributes")
        different = [rank for rank, names in enumerate(by_rank) if names != by_rank[0]]
        if different:
            raise ValueError(
                "TorchState: expected the same models, optimizers and samplers on all ranks, got "
                f"{', '.join(by_rank[0])} on rank 0 and {', '.join(by_rank[different[0]])} on rank "
                f"{different[0]}"
            )
        for name in by_rank[0]:
            self._handlers[name].sync()
        super().sync()

    def reset(self) -> None:
        """**Local.** Spread samplers over the new ranks, and forget a step that was begun."""
        for handler in self._handlers.values():
            handler.reset()

    def saved_content(self) -> Mapping[str, Any]:
        """**Local.** As of ``State``."""
        kept = {name: handler.saved_content() for name, handler in self._handlers.items()}
        return {**super().saved_content(), "handlers": kept}

    def load_content(self, content: Mapping[str, Any]) -> None:
        """**Local.** As of ``State``."""
        expect_names(self._handlers, content["handlers"])
        for name, handler in self._handlers.items():
            handler.load_content(content["handlers"][name])
        super().load_content(content)

    def __setattr__(self, name: str, value: Any) -> None:
        handlers: dict[str, StateHandler] = vars(self).get("_handlers", {})
        objects = vars(self).get("_saved_state", {})
        if name in handlers or name in objects:
            self._keep(name, value, handlers, objects)
        super().__setattr__(name, value)

    def _keep(
        self,
        name: str,
        value: Any,
        handlers: dict[str, StateHandler],
        objects: dict[str, Any],
    ) -> None:
        """Keep ``value`` as attribute ``name`` from now on, by what it is."""
        found = _find_handler(value)
        if name in handlers and found is type(handlers[name]):
            handlers[name].set_value(value)
        elif found is not None:
            objects.pop(name, None)
            handlers[name] = found(value)
        elif name in handlers:
            del handlers[name]
            objects[name] = value

    def _save(self) -> None:
        _wait_for_gpu()
        for handler in self._handlers.values():
            handler.save()
        super()._save()


def _wait_for_gpu() -> None:
    """Return when the GPU has done what it was given, so that nothing else can be saved.

    Raises:
        HorovodInternalError: A rank was lost: what a GPU has computed since may be of gradients
            that were never reduced.
    """
    is_used: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if not is_used:
        return
    torch.cuda.synchronize()
    if basics.is_initialized() and basics.engine().failed:
        raise HorovodInternalError("a rank was lost while the GPU still worked for this commit")


__all__ = [
    "ElasticSampler",
    "ModelStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "set_handler_registry",
]
