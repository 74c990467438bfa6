"""What the step runs on: hosts, links, and what the engine itself costs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from autotune.errors import InvalidSettingError


@dataclass(frozen=True, kw_only=True)
class Link:
    """One kind of connection: a message of ``b`` bytes takes ``alpha_us + b * us_per_byte``.

    Source: Hockney (1994), The communication challenge for MPP, section 2.
    """

    alpha_us: float
    us_per_byte: float

    def __post_init__(self) -> None:
        if self.alpha_us < 0 or self.us_per_byte <= 0:
            raise InvalidSettingError(f"expected alpha >= 0 and beta > 0, got {self}")

    @classmethod
    def of(cls, *, alpha_us: float, gbit_per_s: float) -> Link:
        """Return the link with this latency and bandwidth (1 Gbit/s = 125 bytes/us)."""
        return cls(alpha_us=alpha_us, us_per_byte=1 / (125 * gbit_per_s))

    def slowed(self, factor: float) -> Link:
        """Return this link with ``factor`` times the time per byte and per message."""
        return Link(alpha_us=self.alpha_us * factor, us_per_byte=self.us_per_byte * factor)


@dataclass(frozen=True, kw_only=True)
class EngineCosts:
    """Times of the engine's own work, in microseconds.

    Measured on 2 cores that the ranks shared (experiments/cost_model).

    Attributes:
        announce_us: One announcement: waking up, a message to the coordinator and its answer.
        hit_us: Per tensor of an announcement that the response cache knows.
        miss_us: Per tensor and rank that it does not know: the coordinator reads every request.
        operation_us: Per operation, before data move.
        tensor_us: Per tensor of an operation: looking up, completing its handle.
        copy_us_per_byte: Into the fusion buffer and out of it, together.
        stolen: Share of the engine's working time that the training thread loses: 0 with a free
            core for the engine, up to 1 where ranks fill the cores.
    """

    announce_us: float = 60.0
    hit_us: float = 0.5
    miss_us: float = 4.0
    operation_us: float = 10.0
    tensor_us: float = 1.0
    copy_us_per_byte: float = 4e-4
    stolen: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Hosts, ranks, links.

    Attributes:
        hosts: Number of hosts.
        local_size: Ranks on each of them.
        local: Connection of two ranks of one host (shared memory, NVLink).
        cross: Connection of two hosts, shared by the ranks of a host. Not used with one host.
        engine: The engine's own costs.
    """

    hosts: int
    local_size: int
    local: Link = Link(alpha_us=5.0, us_per_byte=1.5e-4)
    cross: Link = Link(alpha_us=50.0, us_per_byte=8e-3)
    engine: EngineCosts = field(default_factory=EngineCosts)

    def __post_init__(self) -> None:
        if self.hosts < 1 or self.local_size < 1:
            raise InvalidSettingError(
                f"expected at least one host and one rank, got {self.hosts} x {self.local_size}"
            )

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.hosts * self.local_size

    def slowed(self, factor: float) -> Machine:
        """Return this machine with both kinds of links ``factor`` times as slow."""
        return replace(self, local=self.local.slowed(factor), cross=self.cross.slowed(factor))
