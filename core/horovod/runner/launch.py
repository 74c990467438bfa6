"""The command ``horovodrun``: parses the command line and has the ranks started.

Precedence: command line > config file > environment > default. Options that nobody gives export
nothing. What starts the ranks (``ways``) runs as a child; no shell is in between.
"""

from __future__ import annotations

import argparse
import errno
import os
import shlex
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from horovod.runner import mpirun, ways
from horovod.runner.allocation import find_ranks, why_misplaced
from horovod.runner.config_file import read_config_file
from horovod.runner.elastic import options as elastic
from horovod.runner.elastic.options import Elastic
from horovod.runner.hosts import Hosts, parse_hostfile, parse_hosts
from horovod.runner.options import check_seconds, job_environment
from horovod.runner.parser import NOT_MET, OF_ELASTIC_JOBS, make_parser
from horovod.runner.placing import other_hosts
from horovod.runner.rank_process import find_rank
from horovod.runner.supervise import supervise
from horovod.tuning.table import JOB_ID_VARIABLES

NO_WAY = 1
WRONG_USAGE = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``horovodrun``; returns only when there is nothing to start."""
    parser = make_parser()
    arguments = parser.parse_args(argv)
    if arguments.check_build:
        from horovod.runner.check_build import report

        print(report())
        return 0
    try:
        return start(arguments)
    except ValueError as error:
        parser.error(str(error))
    except (mpirun.UnknownMpiError, ways.NoWayError) as error:
        print(f"horovodrun: {error}", file=sys.stderr)
        return NO_WAY


def run_commandline() -> None:
    """Run ``horovodrun`` on this process's own arguments and end it (Horovod's own name)."""
    sys.exit(main())


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return what ``horovodrun`` reads out of ``argv``; wrong usage ends the process."""
    return make_parser().parse_args(argv)


def _run(args: Any) -> list[Any] | None:
    """Run the job that libraries describe by ``horovod.runner._HorovodArgs`` (Horovod's own name).

    Raises:
        As ``arguments.run``.
    """
    from horovod.runner import arguments

    return arguments.run(args)


def start(arguments: argparse.Namespace) -> int:
    """Run the job and return its exit code.

    Raises:
        ValueError: Something is missing or wrong on the command line or in the config file.
        NoWayError: MPI is asked for, and there is none.
        UnknownMpiError: The ``mpirun`` that was found is of no known family.
    """
    if wrong := why_misplaced(os.environ):
        if find_rank(os.environ) > 0:
            return WRONG_USAGE  # rank 0's launcher says it for all
        raise ValueError(wrong)
    for flag in given(arguments, NOT_MET):
        say(f"{flag} is ignored: {NOT_MET[flag][1]}")
    _, environ, command = make_command(arguments, say)
    sys.stdout.flush()
    return supervise(
        command.words, command.environ, size=command.awaited, start_timeout_s=start_timeout(environ)
    )


def say(text: str) -> None:
    """Tell the user, on standard error."""
    print(f"horovodrun: {text}", file=sys.stderr, flush=True)


def make_command(
    arguments: argparse.Namespace, say: Callable[[str], object]
) -> tuple[mpirun.Job, dict[str, str], ways.Command]:
    """Return the job, its environment and what starts it; ``say`` gets what users should know.

    Raises:
        As ``start``.
    """
    environ = make_environment(arguments)
    wanted: Elastic | None = None
    if elastic.is_wanted(arguments):
        hosts = _hosts(arguments) or other_hosts(environ)
        wanted = elastic.read(arguments, hosts, environ)
    job = make_job(arguments, wanted.first if wanted else None)
    way, why = (ways.Elastically(wanted), "") if wanted else ways.choose(environ)
    if why:
        say(f"{why}: the ranks start without MPI, as with --gloo (--mpi insists on MPI)")
    useless = {**way.without_effect, **({} if wanted else OF_ELASTIC_JOBS)}
    for flag in given(arguments, useless):
        say(f"{flag} is ignored: {useless[flag][1]}")
    command = way.command(job, environ, _rank_options(job, arguments))
    if arguments.verbose:
        say(f"({way.name}) {shlex.join(command.words)}")
    return job, environ, command


def _rank_options(job: mpirun.Job, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of ``rank_process``."""
    options: dict[str, Any] = {"size": job.size, "announce": True}
    if arguments.output_filename:
        options["output"] = os.path.abspath(arguments.output_filename)
    if arguments.prefix_output_with_timestamp:
        options["timestamps"] = True
    return options


def parse_options(argv: Sequence[str]) -> argparse.Namespace:
    """Return what ``argv`` says, for callers that are no command line.

    Raises:
        ValueError: A value is wrong.
    """
    parser = make_parser()

    def refuse(message: str) -> NoReturn:
        raise ValueError(message)

    parser.error = refuse  # type: ignore[method-assign]
    return parser.parse_args(argv)


def start_timeout(environ: Mapping[str, str]) -> float | None:
    """Return the seconds that all ranks have to start, None for no limit.

    Raises:
        ValueError: The variable is no positive number.
    """
    text = environ.get("HOROVOD_START_TIMEOUT", "").strip()
    return float(check_seconds(text)) if text else None


def make_job(arguments: argparse.Namespace, size: int | None = None) -> mpirun.Job:
    """Return what the command line asks for.

    Args:
        arguments: Of the command line.
        size: Number of ranks; None: what it says, or a queue.

    Raises:
        ValueError: No number of ranks or no command, or an option that this launcher has not.
    """
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    hosts = _hosts(arguments)
    if size is None:
        number = arguments.num_proc
        size = find_ranks(hosts, os.environ) if number is None else number
    if size is None:
        raise ValueError(
            "-np is missing: the number of ranks, e.g. horovodrun -np 2 python train.py"
        )
    if size < 1:
        raise ValueError(f"-np {size}: expected at least 1 rank")
    if not command:
        raise ValueError("there is no command to start, e.g. horovodrun -np 2 python train.py")
    if arguments.output_filename:
        in_queue = any(os.environ.get(name) for name in JOB_ID_VARIABLES)
        elsewhere = hosts or in_queue or arguments.host_discovery_script
        check_output(arguments.output_filename, is_local=not elsewhere)
    return mpirun.Job(
        size=size,
        command=command,
        hosts=hosts,
        network_interfaces=_interfaces(arguments, hosts),
        ssh_port=arguments.ssh_port,
        ssh_identity_file=arguments.ssh_identity_file or "",
        tcp=arguments.tcp,
        binding_args=_words("--binding-args", arguments.binding_args) or None,
        mpi_args=_words("--mpi-args", arguments.mpi_args),
    )


def given(arguments: argparse.Namespace, options: Mapping[str, tuple[str, str]]) -> list[str]:
    """Return those flags of ``options`` that the command line has.

    Args:
        arguments: Of the command line.
        options: Flag -> (destination, or the variable that it exports; why).
    """
    return [
        flag
        for flag, (name, _) in options.items()
        if getattr(arguments, name, None) or name in arguments.exported
    ]


def _hosts(arguments: argparse.Namespace) -> Hosts:
    if arguments.hostfile:
        return parse_hostfile(Path(arguments.hostfile))
    return parse_hosts(arguments.hosts) if arguments.hosts else []


def _interfaces(arguments: argparse.Namespace, hosts: Hosts) -> list[str]:
    """Return the interfaces to use; a name must exist where this host takes part.

    Raises:
        ValueError: It does not; without this check, ranks wait for each other.
    """
    text = ",".join(arguments.network_interfaces or ())
    names = [name.strip() for name in text.split(",") if name.strip()]
    in_queue = any(name in os.environ for name in mpirun.RESOURCE_MANAGERS)
    takes_part = (
        any(mpirun.is_here(name.rpartition("@")[2]) for name, _ in hosts) if hosts else not in_queue
    )
    there = {name for _, name in socket.if_nameindex()}
    subnets = [name for name in names if "/" in name]
    missing = [name for name in names if name not in there and name not in subnets]
    if takes_part and missing:
        raise ValueError(
            f"--network-interfaces {missing[0]}: this host has no such interface; it has "
            f"{', '.join(sorted(there))}"
        )
    return names


def _words(flag: str, text: str | None) -> list[str]:
    try:
        return shlex.split(text or "")
    except ValueError as error:
        raise ValueError(f"{flag}: {str(error).lower()} in {text!r}") from None


def check_output(path: str, *, is_local: bool) -> None:
    """Check that ``--output-filename`` can be a folder.

    Args:
        path: What the user gave.
        is_local: All ranks run here: the folder is made. Other hosts may have other folders.

    Raises:
        ValueError: It cannot.
    """
    folder = os.path.abspath(path)
    try:
        if os.path.exists(folder) and not os.path.isdir(folder):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if is_local:
            os.makedirs(folder, exist_ok=True)
            if not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ValueError(
            f"--output-filename {path}: expected a folder that can be written, or made ({why})"
        ) from None


def make_environment(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the job's environment; warnings about the config file go to stderr.

    Raises:
        ConfigFileError: The config file cannot be used.
    """
    config: dict[str, str] = {}
    if arguments.config_file:
        config, warnings = read_config_file(Path(arguments.config_file))
        for warning in warnings:
            print(f"horovodrun: {warning}", file=sys.stderr)
    return job_environment(os.environ, config, arguments.exported)


if __name__ == "__main__":
    sys.exit(main())
