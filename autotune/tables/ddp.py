"""The table of PyTorch's DistributedDataParallel: how its gradients are put into buckets.

Bytes where PyTorch says MiB: capacities of 0 stand for what its constructor does without the
argument, which no number of MiB does: 25 MiB with a first bucket of 1 MiB, while an explicit 25
makes the first one as large as the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from autotune.space import MIB, Parameter, Table
from autotune.trial import CommParams, Setting

DEFAULT_BUCKET_CAP_BYTES = 25 * MIB
FIRST_BUCKET_BYTES = MIB
"""What ``bucket_cap_mb=None`` means for all buckets but the first, and for the first, in every
release so far."""

DDP = Table(
    name="ddp",
    formats=("text", "ddp", "env", "json"),
    change_steps=2,  # the first reduces all gradients at once, the second finds out their order
    change_price=0.5,
    outside="the constructor of DistributedDataParallel, or autotune replay",
    step_end="that of the first optimizer that owns parameters of a DistributedDataParallel",
    remedy="",
    parameters=(
        Parameter(
            name="bucket_cap_bytes",
            unit="bytes",
            type=int,
            default=0,
            valid_low=0,
            valid_high=2**40,
            search_low=256 * 1024,
            search_high=512 * MIB,
            scale="log2",
            zero_is_special=True,
            zero_word="None",
            zero_means=DEFAULT_BUCKET_CAP_BYTES,
            saturates_at="payload",
            sparing=512 * MIB,
            word="bucket",
            shown_unit="MiB",
            units_in_shown=MIB,
            env="AUTOTUNE_DDP_BUCKET_CAP_BYTES",
            flag="bucket_cap_mb",
            column="bucket_cap_mb",
        ),
        Parameter(
            name="first_bucket_bytes",
            unit="bytes",
            type=int,
            default=0,
            valid_low=0,
            valid_high=2**40,
            search_low=MIB,
            search_high=4 * MIB,
            scale="log2",
            zero_is_special=True,
            zero_word="default",
            zero_means=4 * MIB,
            saturates_at="payload",
            word="first bucket",
            shown_unit="MiB",
            units_in_shown=MIB,
            env="AUTOTUNE_DDP_FIRST_BUCKET_BYTES",
            flag="first_bucket_mb",
            column="first_bucket_mb",
        ),
        Parameter(
            name="gradient_as_bucket_view",
            unit="0 or 1",
            type=bool,
            default=False,
            valid_low=0,
            valid_high=1,
            search_low=0,
            search_high=1,
            scale="bool",
            sparing=True,  # nothing is copied
            word="gradient as bucket view",
            env="AUTOTUNE_DDP_GRADIENT_AS_BUCKET_VIEW",
            flag="gradient_as_bucket_view",
            column="gradient_as_bucket_view",
        ),
    ),
)


@dataclass(frozen=True, kw_only=True)
class DdpParams(Setting):
    """How the gradients of a DistributedDataParallel module are put into buckets."""

    table: ClassVar[Table] = DDP

    bucket_cap_bytes: int = 0
    first_bucket_bytes: int = 0
    gradient_as_bucket_view: bool = False

    @property
    def as_engine(self) -> CommParams:
        """A fusion buffer that is sent when it is full, and negotiates nothing."""
        return CommParams(
            fusion_threshold_bytes=self.bucket_cap_bytes or DEFAULT_BUCKET_CAP_BYTES,
            cycle_time_ms=10_000.0,
            cache_capacity=2**20,
        )
