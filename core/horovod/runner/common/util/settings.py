"""What a launcher knows about a job, under Horovod's names: for ``mpi_run`` and ``gloo_run``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from horovod.runner.common.util.timeout import Timeout


@dataclass(kw_only=True)
class BaseSettings:
    """A job.

    Attributes:
        num_proc: Number of ranks.
        verbose: From 2 on, print what starts the ranks.
        ssh_port: Of the other hosts.
        ssh_identity_file: Private key for the other hosts.
        extra_mpi_args: More words for mpirun.
        tcp_flag: MPI uses TCP alone.
        binding_args: Words for mpirun instead of binding to nothing.
        key: Horovod's key of its services; without a meaning here.
        start_timeout: What all ranks have to start.
        output_filename: Folder for what each rank writes.
        run_func_mode: Whether a function is called, not a command; without a meaning here.
        nics: Network interfaces to use.
        elastic: Whether the job may grow and shrink.
        prefix_output_with_timestamp: Every line of output begins with the time.
    """

    num_proc: int | None = None
    verbose: int = 0
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    extra_mpi_args: str | None = None
    tcp_flag: bool | None = None
    binding_args: str | None = None
    key: bytes | str | None = None
    start_timeout: Timeout | None = None
    output_filename: str | None = None
    run_func_mode: bool | None = None
    nics: Iterable[str] | None = None
    elastic: bool = False
    prefix_output_with_timestamp: bool = False


@dataclass(init=False)
class Settings(BaseSettings):
    """A job of a fixed size.

    Attributes:
        hosts: ``HOST:SLOTS,HOST:SLOTS,...``; None: this one.
    """

    hosts: str | None = None

    def __init__(self, hosts: str | None = None, **kwargs: object) -> None:
        super().__init__(**kwargs)  # type: ignore[arg-type]
        self.hosts = hosts
