"""What Keras's front ends need of the framework that calculates: TensorFlow or PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from horovod.common.gradients import Options


class Reduction(Protocol):
    """How the gradients of one optimizer are reduced.

    Attributes:
        accumulator: Sums the gradients of several passes; None: there is one pass.
    """

    accumulator: Any

    def register_local(self, variable: Any) -> None:
        """**Local**, every rank alike. Do not reduce the gradient of ``variable``."""

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """**Collective.** Return the reduced ``gradients``, None where there is none."""

    def accumulate(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """**Collective** in the last of several passes. Add ``gradients`` to those before."""

    def apply_if_complete(
        self, apply: Callable[[], object], otherwise: Callable[[], object] = ...
    ) -> object:
        """**Local.** Call ``apply`` after the last of several passes, else ``otherwise``.

        Returns:
            What ``apply`` has returned where there is one pass.
        """

    def agree(self, verdict: Any) -> Any:
        """**Collective.** Return whether ``verdict`` is true on all ranks."""


@dataclass(frozen=True, kw_only=True)
class Support:
    """One framework.

    Attributes:
        name: As Keras calls its backend.
        make_reduction: Returns the reduction of an optimizer from its options and number.
        entry: Prepares a method of a wrapped optimizer for being called in a step that is traced.
    """

    name: str
    make_reduction: Callable[[Options, int], Reduction]
    entry: Callable[[Callable[..., Any]], Callable[..., Any]]


_supports: dict[str, Support] = {}


def register(support: Support) -> None:
    """**Local.** Serve optimizers of this framework from now on."""
    _supports[support.name] = support


def support_of(optimizer: Any) -> Support:
    """**Local.** Return the framework whose tensors ``optimizer`` takes.

    Raises:
        ValueError: It is not served.
    """
    name = "tensorflow"
    if hasattr(type(optimizer), "stateless_apply"):  # Keras 3, which has several
        import keras

        name = keras.backend.backend()
    found = _supports.get(name)
    if found is None:
        served = " or ".join(sorted(_supports)) or "no framework"
        raise ValueError(
            f"DistributedOptimizer: Keras's backend is {name}, and {served} is served here; set "
            "KERAS_BACKEND to tensorflow or torch, and import horovod.keras after that"
        )
    return found
