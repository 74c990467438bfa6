"""How one gradient travels: dense, compressed or sparse, alone or in a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from horovod.common.operation import How
from horovod.common.process_set import ProcessSet
from horovod.common.reduce_ops import Adasum
from horovod.torch import handles, operations
from horovod.torch.collectives.layout import as_it_lies, as_it_stands, is_channels_last
from horovod.torch.collectives.results import result_output
from horovod.torch.collectives.start import start_group
from horovod.torch.compression import Compression, Compressor, compresses


@dataclass(frozen=True, kw_only=True)
class Options:
    """How all gradients of an optimizer are reduced; see ``DistributedOptimizer``."""

    compression: type[Compressor]
    op: int
    prescale_factor: float
    postscale_factor: float
    sparse_as_dense: bool
    process_set: ProcessSet

    def how(self, name: str, wire_type: str | None = None) -> How:
        """**Local.** Return what is to be done with the gradients of ``name``."""
        return How(
            "allreduce",
            name,
            self.process_set,
            self.op,
            float(self.prescale_factor),
            float(self.postscale_factor),
            wire_type=wire_type,
            may_compress=self.compression is Compression.none and self.op != Adasum,
        )

    @property
    def as_they_are(self) -> bool:
        """**Local.** Whether dense gradients may travel as they are: the engine does the rest."""
        return self.compression is Compression.none or self.wire_type is not None

    @property
    def wire_type(self) -> str | None:
        """**Local.** The type as which the engine may let float32 gradients travel."""
        return None if self.op == Adasum else self.compression.wire_type


class Gradient:
    """The gradient of one parameter.

    Attributes:
        parameter: Whose gradient it is.
        name: Name of its operation, unique among the optimizers of the job.
        group: What it is reduced with.
        passes_left: Backward passes before it is reduced.
        is_known: Whether the ranks have agreed on whether it is sparse (see ``Reducer``).
    """

    __slots__ = (
        *("_context", "_sparse_dim"),
        *("__weakref__", "group", "is_known", "name", "parameter", "passes_left"),
    )

    def __init__(self, parameter: torch.Tensor, name: str, passes: int) -> None:
        self.parameter = parameter
        self.name = name
        self.passes_left = passes
        self.group: Group
        self.forget()

    def forget(self) -> None:
        """**Local**, every rank alike. Know nothing of the other ranks' gradient any more."""
        self._context: object = None
        self._sparse_dim = 0
        # torch makes sparse gradients of matrices: rows of an embedding.
        self.is_known = self.parameter.dim() != 2

    @property
    def exists(self) -> bool:
        """**Local.** Return whether it is worth reducing: not that of a frozen parameter."""
        return self.parameter.requires_grad or self.parameter.grad is not None

    @property
    def layout(self) -> int:
        """**Local.** 0: it is missing; 1: dense; 1 + its sparse dimensions.

        Ranks that have joined give zeros.
        """
        gradient = self.parameter.grad
        if gradient is None:
            return 0
        return 1 + gradient.sparse_dim() if gradient.is_sparse else 1

    def learn(self, layout: int) -> None:
        """**Local**, every rank alike. Take the ``layout`` of a rank where it is not missing."""
        self.is_known = layout > 0
        if self.parameter.grad is None and self.is_known:
            self._sparse_dim = layout - 1

    def outgoing(self, options: Options, alone: bool = False) -> torch.Tensor:
        """**Local.** Return what travels: zeros for a missing gradient, dense where it may be.

        The gradient of a parameter in ``channels_last`` goes as it lies (see ``layout``).

        Args:
            options: How gradients travel.
            alone: It travels by ``RepeatedAllreduces``, which compress what the engine can.
        """
        gradient = self.parameter.grad
        if gradient is None:
            gradient = self._zeros()
            if self.parameter.requires_grad:
                self.parameter.grad = gradient
        if gradient.is_sparse:
            self._sparse_dim = gradient.sparse_dim()
            if not options.sparse_as_dense:
                return gradient
            gradient = gradient.to_dense()
        self._context = None
        if options.compression is not Compression.none and not (
            alone and compresses(gradient, options.wire_type)
        ):
            gradient, self._context = options.compression.compress(gradient)
        if options.as_they_are and is_channels_last(self.parameter):
            return as_it_lies(gradient)
        return gradient.contiguous()

    def put_in_place(self, reduced: torch.Tensor, options: Options) -> None:
        """**Local.** Make ``reduced``, which travelled, the parameter's gradient."""
        gradient = self.parameter.grad
        if reduced is gradient and self._context is None:
            return
        if gradient is None and not self.parameter.requires_grad:
            return  # frozen: its zeros only kept its group together
        if not reduced.is_sparse:
            shape = self.parameter.shape
            if options.as_they_are and reduced.shape != shape:
                reduced = as_it_stands(reduced, shape)
            reduced = options.compression.decompress(reduced, self._context)
            if self._sparse_dim:
                reduced = reduced.to_sparse(self._sparse_dim)
        if gradient is None or reduced.is_sparse:
            self.parameter.grad = reduced
        elif gradient.data_ptr() != reduced.data_ptr():
            with torch.no_grad():
                gradient.copy_(reduced)

    def _zeros(self) -> torch.Tensor:
        like = self.parameter.detach()
        if not self._sparse_dim:
            return torch.zeros_like(like)
        rows, shape = self._sparse_dim, like.shape
        indices = torch.empty((rows, 0), dtype=torch.int64, device=like.device)
        values = like.new_empty((0, *shape[rows:]))
        return torch.sparse_coo_tensor(indices, values, shape, check_invariants=False)


class Group:
    """Gradients that are reduced together as soon as the last one is complete; often only one.

    Attributes:
        members: Its gradients.
        missing: How many of them are not complete yet.
        started: Whether they are on their way.
        alone: The allreduce of the only member; None: there are several.
        bytes: Of all parameters.
        batch_bytes: Complete gradients of so many bytes do not wait for further ones. On a GPU the
            script runs ahead of what is computed, so that there is time.
    """

    __slots__ = (
        *("_options", "_waits"),
        *("alone", "batch_bytes", "bytes", "members", "missing", "started"),
    )

    def __init__(self, members: Sequence[Gradient], options: Options) -> None:
        self.members = list(members)
        self.missing = len(self.members)
        self.started = False
        self._options = options
        self._waits: list[tuple[list[Gradient], int | Callable[[], Any]]] = []
        for member in self.members:
            member.group = self
        self.alone: How | None = None
        if len(self.members) == 1:
            self.alone = options.how(self.members[0].name, options.wire_type)
        self.bytes = sum(m.parameter.nbytes for m in self.members)
        self.batch_bytes = (16 << 20) if self.members[0].parameter.is_cuda else (1 << 20)

    def outgoing_alone(self) -> torch.Tensor | None:
        """**Local.** Return what travels by ``alone``; None: ``start`` the group instead."""
        if self.alone is None:
            return None
        tensor = self.members[0].outgoing(self._options, alone=True)
        return None if tensor.is_sparse else tensor

    def put_alone(self, reduced: torch.Tensor, passes: int) -> None:
        """**Local.** Take what travelled by ``alone``, reduced; expect ``passes`` passes again."""
        member = self.members[0]
        self.missing, self.started = 1, False
        member.passes_left = passes
        member.put_in_place(reduced, self._options)

    def start(self) -> None:
        """**Collective.** Start to reduce the members; sparse ones each by itself."""
        options = self._options
        dense, tensors = [], []
        for member in self.members:
            tensor = member.outgoing(options)
            if tensor.is_sparse:
                wait = operations.sparse_allreduce_async(
                    tensor, name=member.name, op=options.op, process_set=options.process_set
                )
                self._waits.append(([member], wait))
            else:
                dense.append(member)
                tensors.append(tensor)
        if dense:
            how = options.how(dense[0].name)
            self._waits.append((dense, start_group(how, tensors, tensors, result_output)))

    def finish(self, passes: int) -> None:
        """**Local.** Wait for the members, put them in place and expect ``passes`` passes again.

        Raises:
            HorovodInternalError: A reduction failed; the group is ready for the next step.
        """
        waits = self._forget(passes)
        remaining = iter(waits)
        try:
            for members, wait in remaining:
                found = wait() if callable(wait) else operations.synchronize(wait)
                parts = found if isinstance(found, list | tuple) else [found]
                for member, reduced in zip(members, parts, strict=True):
                    member.put_in_place(reduced, self._options)
        except BaseException:
            _drop(remaining)
            raise

    def drop(self, passes: int) -> None:
        """**Local.** Forget what is on its way."""
        _drop(self._forget(passes))

    def _forget(self, passes: int) -> list[tuple[list[Gradient], int | Callable[[], Any]]]:
        waits, self._waits = self._waits, []
        self.missing, self.started = len(self.members), False
        for member in self.members:
            member.passes_left = passes
        return waits


def _drop(waits: Any) -> None:
    for _, wait in waits:
        if not callable(wait):
            handles.drop(wait)
