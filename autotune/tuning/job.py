"""What is known of a job before its first step, and which settings can be tried in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autotune.bayes import SearchSpace
from autotune.space import Value
from autotune.trial import CommParams, Setting
from autotune.tuning.exploring.inert import without_operation
from autotune.tuning.exploring.trend import PhysicsTrend
from autotune.tuning.steps.scoring import Reading


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job.

    Attributes:
        size: Ranks.
        hosts: Hosts they are on.
        oversubscribed: Ranks fill the cores.
        fixed: Parameters that the user set explicitly, with their values.
        inert: Parameters that cannot matter in this job, with the reason.
        baseline: What the job starts with where the user fixes nothing.
    """

    size: int
    hosts: int = 1
    oversubscribed: bool = False
    fixed: Mapping[str, Value] = field(default_factory=dict)
    inert: Mapping[str, str] = field(default_factory=dict)
    baseline: Setting = field(default_factory=CommParams)

    @property
    def default(self) -> Setting:
        """The setting that the job starts with.

        Raises:
            InvalidSettingError: A fixed value is outside its parameter's domain.
        """
        return self.baseline.with_values(dict(self.fixed))

    @property
    def frozen(self) -> set[str]:
        """Parameters that are not explored, whatever the training steps are."""
        return {*self.fixed, *self.inert}

    @property
    def space(self) -> SearchSpace:
        """The settings, while the training step is not known."""
        return SearchSpace(self.default, frozen=self.frozen)

    def unused(self, operations: Sequence[tuple[str, int]]) -> dict[str, str]:
        """Return what these training steps do not use, with the reason, beside ``frozen``.

        Args:
            operations: (operation, payload bytes) of one training step.
        """
        return without_operation(operations, self.frozen, self.baseline.table)

    def space_of(self, operations: Sequence[tuple[str, int]]) -> SearchSpace:
        """Return the settings for training steps with these operations."""
        return SearchSpace(
            self.default,
            frozen=self.frozen | self.unused(operations).keys(),
            tensors=len(operations),
            payload=sum(size for _, size in operations),
        )

    def sparing(self, operations: Sequence[tuple[str, int]], space: SearchSpace) -> Setting | None:
        """Return the setting under which communication takes the least from the computation.

        None: that is the default, or what is hidden is taken to take nothing. On a GPU it runs on
        the processors that compute; host memory is communicated by a thread beside them.

        Args:
            operations: As in ``space_of``.
            space: The settings that may be tried.
        """
        if not any(operation.startswith("cuda ") for operation, _ in operations):
            return None
        rows = space.default.table.by_name
        values = {name: rows[name].sparing for name in space.names}
        found = {name: value for name, value in values.items() if value is not None}
        sparing = space.default.with_values(found)
        return sparing if sparing != space.default else None

    def trend(self, operations: Sequence[tuple[str, int]], reading: Reading) -> PhysicsTrend | None:
        """Return what physics expects of any setting; None: there is no model of such settings.

        Args:
            operations: As in ``space_of``.
            reading: Of the default.
        """
        if self.default.as_engine is None:
            return None
        return PhysicsTrend(operations, self.default, reading, size=self.size, hosts=self.hosts)
