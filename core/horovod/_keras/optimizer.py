"""An optimizer of Keras whose gradients are reduced before it applies them.

The result is of a subclass of the optimizer's own class and has everything that the optimizer has:
state, learning rate, iterations. Where Keras asks it for its class, to write it into a model's
file, it answers with the own one, so that a file is read without Horovod.

There are three kinds. Keras 3 hands gradients to ``apply``. tf-keras lets ``aggregate_gradients``
reduce them, its older optimizers ``_aggregate_gradients``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from horovod._keras.support import Reduction, support_of
from horovod.common.gradients import Options, next_number, underlying
from horovod.common.reduce_ops import Adasum

if TYPE_CHECKING:

    class _Optimizer:
        """What the mixins call of the optimizers that they are mixed into."""

        built: bool
        iterations: Any
        _trainable_variables: Sequence[Any]

        def apply(self, grads: Any, trainable_variables: Any = None) -> Any: ...
        def build(self, variables: Any) -> Any: ...
        def apply_gradients(
            self, grads_and_vars: Any, name: Any = None, **arguments: Any
        ) -> Any: ...
        def aggregate_gradients(self, grads_and_vars: Any) -> Any: ...
        def _aggregate_gradients(self, grads_and_vars: Any) -> Any: ...
        def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> Any: ...
        def _compute_gradients(self, *positional: Any, **arguments: Any) -> Any: ...
        def _create_all_weights(self, var_list: Any) -> Any: ...

else:
    _Optimizer = object

Pairs = Iterable[tuple[Any, Any]]
METHODS = ("apply", "apply_gradients", "aggregate_gradients", "_aggregate_gradients")
"""Those by which gradients come, of whatever kind; ``_compute_gradients`` calls a script's loss."""


class Distributed(_Optimizer):
    """A wrapped optimizer, of whatever kind; see ``DistributedOptimizer``."""

    _horovod_make: Callable[[], Reduction]

    @property
    def _horovod(self) -> Reduction:
        """How its gradients are reduced; a copy made by ``from_config`` has one of its own."""
        own = vars(self)
        if "_horovod_reduction" not in own:
            own["_horovod_reduction"] = type(self)._horovod_make()
        reduction: Reduction = own["_horovod_reduction"]
        return reduction

    @property
    def _agg_helper(self) -> Any:
        """What sums gradients over several passes (Horovod's own name); None: there is one pass."""
        return self._horovod.accumulator

    def register_local_var(self, var: Any) -> None:
        """**Local**, every rank alike. Leave the gradient of ``var`` to this rank alone."""
        self._horovod.register_local(var)

    def _reduced(self, pairs: Pairs) -> list[tuple[Any, Any]]:
        """**Collective.** Return ``pairs`` with gradients that are reduced, or summed up."""
        pairs = list(pairs)
        gradients, variables = [g for g, _ in pairs], [v for _, v in pairs]
        if not pairs:
            return []
        several = self._horovod.accumulator is not None
        reduce = self._horovod.accumulate if several else self._horovod.reduce
        return list(zip(reduce(gradients, variables), variables, strict=True))


class DistributedApply(Distributed):
    """Of Keras 3."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """**Collective.** Reduce the gradients and update the variables; arguments as Keras's."""
        grads = list(grads)
        known = self._trainable_variables if trainable_variables is None else trainable_variables
        variables = list(known)
        given = None if trainable_variables is None else variables
        if not grads or len(grads) != len(variables):
            super().apply(grads, given)  # which says what is wrong
            return
        if self._horovod.accumulator is None:
            super().apply(self._horovod.reduce(grads, variables), given)
            return
        if not self.built:
            self.build(variables)  # a branch of a graph cannot make variables
        sums = self._horovod.accumulate(grads, variables)
        apply = super().apply
        self._horovod.apply_if_complete(lambda: apply(sums, given))


class DistributedOfTfKeras(Distributed):
    """Of tf-keras, newer and older ones.

    Scripts of Horovod take gradients that are reduced from ``_compute_gradients``.
    """

    def _reduced_of_loss(self, pairs: Pairs) -> list[tuple[Any, Any]]:
        """**Collective.** Return ``pairs`` reduced, which nobody is to reduce again."""
        reduced = self._reduced(pairs)
        vars(self).update(_horovod_has_reduced=True)
        return reduced

    def _reduced_once(self, pairs: Pairs) -> list[tuple[Any, Any]]:
        """**Collective**, unless ``_reduced_of_loss`` has reduced these. Return ``pairs``."""
        if vars(self).pop("_horovod_has_reduced", False):
            return list(pairs)
        return self._reduced(pairs)

    def _apply_in_turn(self, apply: Callable[[], object], build: Callable[[], object]) -> Any:
        """**Local.** Call ``apply`` after the last of several passes; ``build`` made its variables.

        ``iterations`` counts passes, as Horovod's does. While ``apply`` runs it counts updates, by
        which Adam corrects its averages and schedules set the learning rate.
        """
        vars(self).pop("_horovod_has_reduced", None)
        accumulator = self._horovod.accumulator
        if accumulator is None:
            return apply()
        _outside_of_graphs(build)
        iterations = self.iterations

        def update() -> None:
            before = iterations.read_value()
            iterations.assign(before // accumulator.passes)
            apply()
            iterations.assign(before + 1)

        return self._horovod.apply_if_complete(update, lambda: iterations.assign_add(1))


class DistributedAggregate(DistributedOfTfKeras):
    """Of tf-keras."""

    def _compute_gradients(
        self, loss: Any, var_list: Any, *, tape: Any = None
    ) -> list[tuple[Any, Any]]:
        """**Collective.** Return (reduced gradient, variable)."""
        return self._reduced_of_loss(self.compute_gradients(loss, var_list, tape))

    def aggregate_gradients(self, grads_and_vars: Pairs) -> list[tuple[Any, Any]]:
        """**Collective**, unless they are reduced. An optimizer around this one asks, too."""
        return self._reduced_once(grads_and_vars)

    def apply_gradients(
        self,
        grads_and_vars: Pairs,
        name: str | None = None,
        skip_gradients_aggregation: bool = False,
        **arguments: Any,
    ) -> Any:
        """**Collective.** Reduce the gradients, if nobody has yet, and update the variables.

        Args:
            grads_and_vars: (gradient, variable) pairs.
            name: As tf-keras's.
            skip_gradients_aggregation: The gradients are reduced already.
            **arguments: As tf-keras's.
        """
        pairs = list(grads_and_vars)
        reduces = arguments.pop("experimental_aggregate_gradients", True)
        if reduces and not skip_gradients_aggregation:
            pairs = self.aggregate_gradients(pairs)
        apply = super().apply_gradients
        return self._apply_in_turn(
            lambda: apply(pairs, skip_gradients_aggregation=True, **_named(name), **arguments),
            lambda: self.build([variable for _, variable in pairs]),
        )


class DistributedLegacy(DistributedOfTfKeras):
    """Of ``tf.keras.optimizers.legacy``."""

    def _compute_gradients(self, *positional: Any, **arguments: Any) -> list[tuple[Any, Any]]:
        """**Collective.** Return (reduced gradient, variable)."""
        return self._reduced_of_loss(super()._compute_gradients(*positional, **arguments))

    def _aggregate_gradients(self, grads_and_vars: Pairs) -> list[tuple[Any, Any]]:
        """**Collective**, unless ``_compute_gradients`` has reduced these."""
        return self._reduced_once(grads_and_vars)

    def apply_gradients(
        self,
        grads_and_vars: Pairs,
        name: str | None = None,
        experimental_aggregate_gradients: bool = True,
        **arguments: Any,
    ) -> Any:
        """**Collective.** Reduce the gradients, if nobody has yet, and update the variables.

        Args:
            grads_and_vars: (gradient, variable) pairs.
            name: As tf-keras's.
            experimental_aggregate_gradients: False: the gradients are reduced already.
            **arguments: As tf-keras's.
        """
        pairs = list(grads_and_vars)
        if experimental_aggregate_gradients:
            pairs = self._aggregate_gradients(pairs)
        apply = super().apply_gradients
        return self._apply_in_turn(
            lambda: apply(
                pairs, experimental_aggregate_gradients=False, **_named(name), **arguments
            ),
            lambda: self._create_all_weights([variable for _, variable in pairs]),
        )


def wrap(optimizer: Any, options: Options, name: str | None = None) -> Any:
    """**Local**, every rank alike. Return ``optimizer`` with gradients that are reduced.

    Args:
        optimizer: Of Keras 3 or tf-keras; state and variables are shared with the result.
        options: How gradients are reduced.
        name: Accepted for compatibility: an optimizer keeps its name.

    Raises:
        ValueError: It is wrapped already, no such optimizer, or not to be used with Adasum.
    """
    if is_distributed(optimizer):
        raise ValueError(
            "DistributedOptimizer: the optimizer is wrapped already; pass the plain one"
        )
    if options.op == Adasum:
        raise ValueError(
            "DistributedOptimizer: op=Adasum is not supported with Keras; use Average, or "
            "op=hvd.Adasum of hvd.DistributedGradientTape"
        )
    own = type(optimizer)
    added = _kind(own)
    support = support_of(optimizer)
    if added is DistributedApply:
        _teach_loss_scaling()
    methods = [name for name in METHODS if name in vars(added)]
    members: dict[str, Any] = {name: support.entry(vars(added)[name]) for name in methods}
    members |= {
        "__class__": property(lambda self: own),
        "__module__": own.__module__,
        "__qualname__": own.__qualname__,
        "__doc__": own.__doc__,
        "_horovod_make": staticmethod(
            lambda: support.make_reduction(options, next_number("optimizer", options.process_set))
        ),
    }
    wrapped: Any = object.__new__(type(own.__name__, (added, own), members))
    vars(wrapped).update(vars(optimizer))
    _ = wrapped._horovod  # numbered in the order of wrapping
    return wrapped


def is_distributed(optimizer: Any) -> bool:
    """**Local.** Return whether ``optimizer``, or the one within a loss scaling one, is wrapped."""
    while optimizer is not None:
        if isinstance(optimizer, Distributed):
            return True
        own = getattr(optimizer, "__dict__", {})
        optimizer = own.get("inner_optimizer") or own.get("_optimizer")
    return False


def build(optimizer: Any, variables: Sequence[Any]) -> None:
    """**Local.** Let ``optimizer`` make the variables that it keeps of ``variables``."""
    if hasattr(optimizer, "stateless_apply"):
        if not optimizer.built:
            optimizer.build(variables)
    elif hasattr(optimizer, "build"):
        optimizer.build(variables)
    elif hasattr(optimizer, "_create_all_weights"):
        optimizer._create_all_weights(variables)


def variables_of(optimizer: Any) -> list[Any]:
    """**Local.** Return all variables of ``optimizer``; tf-keras does not count those of rates."""
    found = optimizer.variables
    found = list(found() if callable(found) else found)
    known = {id(underlying(variable)) for variable in found}
    rates = [getattr(optimizer, "_learning_rate", None), *getattr(optimizer, "_hyper", {}).values()]
    return found + [r for r in rates if hasattr(r, "assign") and id(underlying(r)) not in known]


def _kind(own: type) -> type[Distributed]:
    if hasattr(own, "stateless_apply"):
        return DistributedApply
    if hasattr(own, "_compute_gradients") and hasattr(own, "apply_gradients"):
        return DistributedLegacy
    if hasattr(own, "aggregate_gradients"):
        return DistributedAggregate
    raise ValueError(
        "DistributedOptimizer: expected an optimizer of Keras, got "
        f"{own.__module__}.{own.__qualname__}"
    )


def _named(name: str | None) -> dict[str, str]:
    return {} if name is None else {"name": name}


def _outside_of_graphs(make: Callable[[], object]) -> None:
    """Call ``make``, which makes variables, where a function that is traced may make them."""
    tf = importlib.import_module("tensorflow")
    with tf.init_scope():
        make()


def _teach_loss_scaling() -> None:
    """Let Keras's loss scaling skip a step on all ranks when one of them has to skip it.

    It looks at the gradients before a wrapped optimizer within it reduces them.
    """
    import keras

    scaling = keras.optimizers.LossScaleOptimizer
    plain = scaling.check_finite
    if getattr(plain, "_horovod", False):
        return

    def check_finite(self: Any, grads: Any) -> Any:
        finite = plain(self, grads)
        inner = self.inner_optimizer
        return inner._horovod.agree(finite) if isinstance(inner, Distributed) else finite

    check_finite._horovod = True  # type: ignore[attr-defined]
    scaling.check_finite = check_finite
