"""How a wrapped optimizer or tape reduces gradients, whatever framework they are of."""

from __future__ import annotations

import atexit
import logging
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from horovod.common import basics, rounds
from horovod.common.compression import Compressor
from horovod.common.process_set import ProcessSet
from horovod.common.reduce_ops import Adasum, Average, Product
from horovod.common.util import split_list
from horovod.common.variables import short_name

logger = logging.getLogger("horovod")


@dataclass(frozen=True, kw_only=True)
class Options:
    """How all gradients of an optimizer or tape are reduced.

    Attributes:
        compression: How dense gradients travel.
        op: The reduction.
        prescale_factor: Factor before the reduction.
        postscale_factor: Factor after it.
        sparse_as_dense: Reduce sparse gradients as dense ones.
        groups: Gradients that are reduced together: None, a number of groups, or lists of
            variables.
        process_set: Ranks that train together.
        passes: Backward passes per reduction.
        average_passes: Divide the sum of the passes by their number.
        scale_local_gradients: Divide gradients that are not reduced by the number of ranks.
    """

    compression: type[Compressor]
    op: int
    prescale_factor: float
    postscale_factor: float
    sparse_as_dense: bool
    groups: Any
    process_set: ProcessSet
    passes: int = 1
    average_passes: bool = False
    scale_local_gradients: bool = True

    @property
    def communicates(self) -> bool:
        """**Local.** Whether this rank has others to train with. ValueError before ``init``."""
        basics.job()
        may_have_others = self.process_set.size() != 1 or rounds.is_elastic()
        return bool(self.process_set.included()) and may_have_others


def make_options(
    caller: str,
    *,
    compression: type[Compressor],
    op: int,
    gradient_predivide_factor: float,
    sparse_as_dense: bool,
    num_groups: int,
    groups: Any,
    process_set: ProcessSet,
    passes: int = 1,
    average_passes: bool = False,
    scale_local_gradients: bool = True,
) -> Options:
    """**Local.** Return the options that the arguments of ``caller`` mean.

    Raises:
        ValueError: One of them is unsuitable.
    """
    if op not in range(Average, Product + 1):
        raise ValueError(
            f"{caller}: op: expected Average, Sum, Adasum, Min, Max or Product, got {op!r}"
        )
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError(f"{caller}: gradient_predivide_factor: supported only with op=Average")
    if not gradient_predivide_factor > 0:
        raise ValueError(
            f"{caller}: gradient_predivide_factor: expected a number > 0, got "
            f"{gradient_predivide_factor}"
        )
    if op == Adasum and average_passes:
        raise ValueError(f"{caller}: average_aggregated_gradients: not with op=Adasum")
    if isinstance(passes, bool) or not isinstance(passes, int) or passes < 1:
        raise ValueError(
            f"{caller}: backward_passes_per_step: expected a whole number > 0, got {passes!r}"
        )
    if num_groups:
        warnings.warn("num_groups is deprecated: use groups", DeprecationWarning, stacklevel=4)
        groups = num_groups if groups is None else groups
    if isinstance(groups, int) and groups <= 0:
        raise ValueError(
            f"{caller}: groups: expected a number > 0 or lists of variables, got {groups}"
        )
    if groups is not None and not isinstance(groups, int | list | tuple):
        raise ValueError(
            f"{caller}: groups: expected a number or lists of variables, got {groups!r}"
        )
    return Options(
        compression=compression,
        op=op,
        prescale_factor=1.0 / gradient_predivide_factor,
        postscale_factor=gradient_predivide_factor,
        sparse_as_dense=sparse_as_dense,
        groups=groups,
        process_set=process_set,
        passes=passes,
        average_passes=average_passes,
        scale_local_gradients=scale_local_gradients,
    )


def positions_of_groups(
    groups: Any, variables: Sequence[Any], wanted: Sequence[int]
) -> list[list[int]]:
    """**Local**, every rank alike. Return the positions that are reduced together.

    Args:
        groups: As in ``Options``.
        variables: Whose gradients there are.
        wanted: Positions of those that are reduced.

    Returns:
        One list per group; positions that are in no group are lists of one.
    """
    if groups is None:
        return [[position] for position in wanted]
    if isinstance(groups, int):
        return [each for each in split_list(wanted, min(groups, len(wanted)) or 1) if each]
    position_of = {id(underlying(variables[i])): i for i in wanted}
    chosen = [
        [position_of[id(underlying(v))] for v in group if id(underlying(v)) in position_of]
        for group in groups
    ]
    grouped = {position for group in chosen for position in group}
    return [group for group in chosen if group] + [[i] for i in wanted if i not in grouped]


def underlying(variable: Any) -> Any:
    """**Local.** Return the framework's own variable of one that Keras may have wrapped."""
    kept = getattr(variable, "_value", None)
    return variable if kept is None or callable(kept) else kept


def operation_names(label: str, variables: Sequence[Any]) -> list[str]:
    """**Local**, every rank alike. Return the name of each variable's gradient."""
    return [f"{label}.{i}.{short_name(variable)}" for i, variable in enumerate(variables)]


class _Reductions:
    """What this process knows of its reductions of gradients."""

    def __init__(self) -> None:
        self.exist = False
        self.is_watched = False
        self.numbers: Counter[tuple[str, int | None]] = Counter()


_reductions = _Reductions()


def next_number(kind: str, process_set: ProcessSet) -> int:
    """**Local**, every member of ``process_set`` alike. Return how many of a kind there were.

    Other ranks may have had more or fewer: a number is part of names among the members.
    """
    key = kind, process_set.process_set_id
    number = _reductions.numbers[key]
    _reductions.numbers[key] += 1
    return number


def note_reduction() -> None:
    """**Local.** Take note that something is reduced over the ranks in this job."""
    _reductions.exist = True


def has_reduced() -> bool:
    """**Local.** Return whether something was reduced over the ranks."""
    return _reductions.exist


def warn_if_nothing_is_reduced(what: str) -> None:
    """**Local.** Say, on rank 0 of a job of several ranks, that no gradients are averaged.

    Args:
        what: What has been seen, the beginning of the sentence.
    """
    if not basics.is_initialized() or has_reduced() or basics.size() == 1 or basics.rank() != 0:
        return
    logger.warning(
        "%s, but no gradient is averaged over the %d ranks, which train by themselves: wrap the "
        "optimizer, hvd.DistributedOptimizer(optimizer), or the tape, "
        "hvd.DistributedGradientTape(tape)",
        what,
        basics.size(),
    )
    note_reduction()  # once is enough


def warn_at_exit() -> None:
    """**Local.** When the process ends, say if it never communicated; call it after ``init``."""
    if not _reductions.is_watched:
        _reductions.is_watched = True
        atexit.register(_look_back)


def _look_back() -> None:
    if basics.script_raised() or not basics.is_initialized():
        return
    engine = basics.job().engine
    if not engine.failed and engine.counters()["operations"] == 0:
        warn_if_nothing_is_reduced("the job ends")
