"""NCCL's own parameters, which follow those of a runtime where they are explored.

The tuner library of this package tells NCCL what to do with every operation of at least
``LEAST_BYTES``. The numbers are NCCL's plus one (its ``plugin/nccl_tuner.h``), so that 0, the
default, is NCCL's own choice. Both runtimes have a table with them and one without: the columns of
a log in which they were not explored are what they are everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

from autotune.space import HOROVOD, MIB, PARAMETERS, Parameter, Table
from autotune.tables.ddp import DDP, DdpParams
from autotune.tables.further import extended, words_of
from autotune.trial import CommParams, Setting

LEAST_BYTES = MIB
"""Smaller operations are NCCL's own choice: they wait for latency (``csrc/comm/nccl/nccl_tuner.h``
has the same number)."""
MOST_CHANNELS = 64
"""NCCL's MAXCHANNELS."""

ALGORITHMS = ("", "tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS = ("", "ll", "ll128", "simple")
"""NCCL's words, by our numbers."""

_OWN = "auto"
"""What people read where the choice is NCCL's own."""

NCCL_PARAMETERS: tuple[Parameter, ...] = (
    Parameter(
        name="nccl_algorithm",
        unit="NCCL's number + 1",
        type=int,
        default=0,
        valid_low=0,
        valid_high=len(ALGORITHMS) - 1,
        search_low=0,
        search_high=2,
        scale="listed",
        listed=(2, 0, 1),  # for large operations NCCL's own choice is mostly the ring
        names=(_OWN, *ALGORITHMS[1:]),
        word="NCCL algorithm",
        env="AUTOTUNE_NCCL_ALGORITHM",
        flag="--nccl-algorithm",
        column="nccl_algorithm",
    ),
    Parameter(
        name="nccl_protocol",
        unit="NCCL's number + 1",
        type=int,
        default=0,
        valid_low=0,
        valid_high=len(PROTOCOLS) - 1,
        search_low=0,
        search_high=3,
        scale="listed",
        listed=(2, 0, 3),  # LL sends every byte twice
        names=(_OWN, *PROTOCOLS[1:]),
        word="NCCL protocol",
        env="AUTOTUNE_NCCL_PROTOCOL",
        flag="--nccl-protocol",
        column="nccl_protocol",
    ),
    Parameter(
        name="nccl_channels",
        unit="channels",
        type=int,
        default=0,
        valid_low=0,
        valid_high=MOST_CHANNELS,
        search_low=0,
        search_high=32,
        scale="listed",
        listed=(2, 4, 8, 0, 16, 32),
        zero_is_special=True,
        zero_word=_OWN,
        word="NCCL channels",
        env="AUTOTUNE_NCCL_CHANNELS",
        flag="--nccl-channels",
        column="nccl_channels",
    ),
)

_LAUNCHERS = ("mpirun", "mpiexec", "slurm", "pbs", "k8s")

HOROVOD_NCCL = Table(
    name="horovod+nccl",
    parameters=(*PARAMETERS, *NCCL_PARAMETERS),
    after_score=len(NCCL_PARAMETERS),
    formats=("text", "env", "flags", "yaml", "json", *_LAUNCHERS, "nccl"),
    change_steps=HOROVOD.change_steps,
    change_price=HOROVOD.change_price,
)

DDP_NCCL = Table(
    name="ddp+nccl",
    parameters=(*DDP.parameters, *NCCL_PARAMETERS),
    after_score=len(NCCL_PARAMETERS),
    formats=(*DDP.formats, "nccl"),
    outside=DDP.outside,
    change_steps=DDP.change_steps,
    change_price=DDP.change_price,
    step_end=DDP.step_end,
    remedy=DDP.remedy,
)


@dataclass(frozen=True, kw_only=True)
class CommNcclParams(CommParams):
    """One full setting of the runtime ``horovod``, and of NCCL."""

    table: ClassVar[Table] = HOROVOD_NCCL

    nccl_algorithm: int = 0
    nccl_protocol: int = 0
    nccl_channels: int = 0


@dataclass(frozen=True, kw_only=True)
class DdpNcclParams(DdpParams):
    """How the gradients of a DistributedDataParallel module are put into buckets, and NCCL's."""

    table: ClassVar[Table] = DDP_NCCL

    nccl_algorithm: int = 0
    nccl_protocol: int = 0
    nccl_channels: int = 0

    @property
    def buckets(self) -> DdpParams:
        """All of it but what is NCCL's."""
        kind, values = without_nccl(type(self)), self.as_dict()
        return kind.from_dict({name: values[name] for name in kind.table.by_name})


def without_nccl(kind: type[DdpParams]) -> type[DdpParams]:
    """Return the kind of setting with all parameters of ``kind`` but NCCL's."""
    return cast("type[DdpParams]", extended(DdpParams, words_of(kind.table)))


def names_nccl(params: Setting) -> bool:
    """Return whether a setting says something about NCCL."""
    return any(getattr(params, row.name, 0) for row in NCCL_PARAMETERS)
