"""Names of an optimizer's parameters, of its operations, and its groups of parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from horovod.common import rounds
from horovod.common.process_set import ProcessSet
from horovod.torch.functions import broadcast_object

Names = dict[torch.Tensor, str]

_times_used: Counter[tuple[int | None, str]] = Counter()
"""{(process set, parameter name): by how many optimizers}."""
_wrapped: Any = WeakTensorKeyDictionary()
"""{parameter: (number, turn) of the newest optimizer that wraps it}."""


def parameter_names(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> Names:
    """**Local.** Return {parameter: name} in the order of the parameter groups.

    Raises:
        ValueError: Not all parameters are named, a name is used twice, or no pairs were given.
    """
    in_groups = {
        parameter: f"allreduce.noname.{g}.{i}"
        for g, group in enumerate(optimizer.param_groups)
        for i, parameter in enumerate(group["params"])
    }
    pairs: Sequence[Any] = list(named_parameters or ())
    if not pairs:
        return in_groups
    if not all(isinstance(pair, tuple) for pair in pairs):
        raise ValueError(
            "named_parameters: expected a sequence of (name, parameter) tuples, usually "
            "model.named_parameters()"
        )
    counts = Counter(name for name, _ in pairs)
    duplicates = sorted(name for name, count in counts.items() if count > 1)
    if duplicates:
        raise ValueError(
            f"named_parameters: parameter names must be unique; found {', '.join(duplicates)} "
            "more than once"
        )
    given = {parameter: name for name, parameter in pairs}
    unnamed = [default for parameter, default in in_groups.items() if parameter not in given]
    if unnamed:
        raise ValueError(
            f"named_parameters: {len(unnamed)} of the optimizer's {len(in_groups)} parameters are "
            "not named; pass the names of all of them, or none"
        )
    return {parameter: given[parameter] for parameter in in_groups}


class OperationNames:
    """Names of an optimizer's operations: its parameters' names, unique among the optimizers.

    Optimizers of one process set may have parameters of equal names (the two of a GAN, or two
    without names): the second one's operations are ``weight#1``, and so on, in the order in which
    they are wrapped, which must be the same on all ranks. An optimizer that wraps the parameters
    of another one takes over its names.

    Args:
        number: The optimizer's number.
        names: Its parameters.
        process_set_id: Where they are reduced.

    """

    def __init__(self, number: int, names: Names, process_set_id: int | None) -> None:
        self._number, self._set = number, process_set_id
        used = (_times_used[process_set_id, name] for name in names.values())
        self._turn: int = max(used, default=0)
        replaced = _newest_wrapper(names)
        if replaced is not None:
            self._turn = replaced[1]
        for parameter, name in names.items():
            self.add(parameter, name)

    def add(self, parameter: torch.Tensor, name: str) -> None:
        """**Local**, every rank alike. Take note of a parameter of this optimizer."""
        key = self._set, name
        _times_used[key] = max(_times_used[key], self._turn + 1)
        _wrapped[parameter] = self._number, self._turn

    def __call__(self, name: str) -> str:
        """**Local.** Return the operation's name for the parameter called ``name``."""
        return f"{name}#{self._turn}" if self._turn else name


def replaced_optimizer(names: Names) -> int | None:
    """**Local.** Return the number of the optimizer that wraps some of the parameters already."""
    found = _newest_wrapper(names)
    return None if found is None else found[0]


def _newest_wrapper(names: Names) -> tuple[int, int] | None:
    return max((_wrapped[p] for p in names if p in _wrapped), default=None)


def parameter_groups(
    groups: object, names: Names, process_set: ProcessSet | None
) -> list[list[torch.Tensor]]:
    """Return the lists of parameters to be reduced together.

    **Collective** over ``process_set`` where ``groups`` is a number: the order of its first rank's
    parameters decides. In an elastic job, where a rank that is new does this alone, the
    parameters have to be in the same order on all ranks, and nobody is asked.

    Args:
        groups: None; how many lists of nearly equal length; or the lists themselves.
        names: The parameters that there are.
        process_set: Where they are reduced; None where they are not.

    Raises:
        ValueError: Neither, a parameter in two lists, or one that is not the optimizer's.
    """
    if groups is None:
        return []
    if isinstance(groups, int) and not isinstance(groups, bool):
        if groups < 0:
            raise ValueError(f"groups: {_EXPECTED}, got {groups}")
        if groups == 0 or process_set is None:
            return []
        return _split(groups, _order(names, process_set))
    if not isinstance(groups, list | tuple) or not all(isinstance(g, list | tuple) for g in groups):
        raise ValueError(f"groups: {_EXPECTED}, got {groups!r:.80}")
    members = [parameter for group in groups for parameter in group]
    if not all(isinstance(parameter, torch.Tensor) for parameter in members):
        raise ValueError(f"groups: {_EXPECTED}, got lists of something else")
    if len({id(parameter) for parameter in members}) < len(members):
        raise ValueError("groups: a parameter may be only in one group, and once")
    foreign = sum(parameter not in names for parameter in members)
    if foreign:
        raise ValueError(f"groups: {foreign} of {len(members)} tensors are not the optimizer's")
    return [list(group) for group in groups]


_EXPECTED = "expected a number of groups >= 0, or a list of lists of parameters"


def _order(names: Names, process_set: ProcessSet) -> list[torch.Tensor]:
    """Return the trainable parameters in the order that all ranks have."""
    if rounds.is_elastic():
        return [parameter for parameter in names if parameter.requires_grad]
    return _common_order(names, process_set)


def _common_order(names: Names, process_set: ProcessSet) -> list[torch.Tensor]:
    """**Collective.** Return the trainable parameters in the order of the set's first rank."""
    ours = {name: parameter for parameter, name in names.items() if parameter.requires_grad}
    root = (process_set.ranks or [0])[0]
    order = broadcast_object(list(ours), root, process_set=process_set)
    if set(order) != set(ours):
        differing = sorted(set(order) ^ set(ours))
        raise ValueError(
            f"groups: trainable parameters differ between this rank and rank {root}: "
            f"{', '.join(differing[:5])}; wrap the same model on all ranks"
        )
    return [ours[name] for name in order]


def _split(count: int, parameters: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Return ``parameters`` in at most ``count`` runs whose lengths differ by one at most."""
    count = min(count, len(parameters)) or 1
    ends = [len(parameters) * (i + 1) // count for i in range(count)]
    return [parameters[start:end] for start, end in zip([0, *ends], ends, strict=False)]
