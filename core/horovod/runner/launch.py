"""The command ``horovodrun``: parses the command line and hands over to ``mpirun``.

Precedence: command line > config file > environment > default. Options that nobody gives export
nothing. The process *becomes* mpirun: signals, standard input and the exit code are mpirun's own.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import horovod
from horovod.runner import mpirun, probe
from horovod.runner.config_file import read_config_file
from horovod.runner.hosts import parse_hostfile, parse_hosts
from horovod.runner.options import OPTIONS, Option, job_environment

USAGE_ERROR = 2
NO_MPIRUN = 1


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
    except mpirun.UnknownMpiError as error:
        print(f"horovodrun: {error}", file=sys.stderr)
        return NO_MPIRUN


def start(arguments: argparse.Namespace) -> int:
    """Replace this process by ``mpirun``; an exit code when there is none.

    Raises:
        ValueError: Something is missing or wrong on the command line or in the config file.
        UnknownMpiError: The ``mpirun`` that was found is of no known family.
    """
    job = make_job(arguments)
    environ = make_environment(arguments)
    program = probe.find_mpirun(probe.engine_build().library, environ.get("PATH"))
    if program is None:
        print(f"horovodrun: {missing_mpirun()}", file=sys.stderr)
        return NO_MPIRUN
    family = mpirun.ask_family(program)
    words = mpirun.command_line(program, family, job, environ, mpirun.physical_cores())
    if job.output_dir:
        Path(job.output_dir).mkdir(parents=True, exist_ok=True)
    if arguments.verbose:
        print(f"horovodrun ({family}): {shlex.join(words)}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os.execve(program, words, mpirun.launcher_environment(environ, os.getuid()))


def make_job(arguments: argparse.Namespace) -> mpirun.Job:
    """Return what the command line asks for.

    Raises:
        ValueError: No number of ranks or no command, or an option that this launcher has not.
    """
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if arguments.num_proc is None:
        raise ValueError(
            "-np is missing: the number of ranks, e.g. horovodrun -np 2 python train.py"
        )
    if arguments.num_proc < 1:
        raise ValueError(f"-np {arguments.num_proc}: expected at least 1 rank")
    if not command:
        raise ValueError("there is no command to start, e.g. horovodrun -np 2 python train.py")
    if arguments.gloo or arguments.jsrun:
        raise ValueError("--gloo, --jsrun: this package starts jobs with MPI only; leave them out")
    hosts = parse_hosts(arguments.hosts) if arguments.hosts else []
    if arguments.hostfile:
        hosts = parse_hostfile(Path(arguments.hostfile))
    interfaces = arguments.network_interfaces or ""
    return mpirun.Job(
        size=arguments.num_proc,
        command=command,
        hosts=hosts,
        output_dir=arguments.output_filename or "",
        network_interfaces=[name.strip() for name in interfaces.split(",") if name.strip()],
        ssh_port=arguments.ssh_port,
        binding_args=shlex.split(arguments.binding_args) if arguments.binding_args else None,
        mpi_args=shlex.split(arguments.mpi_args or ""),
    )


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


def missing_mpirun() -> str:
    """Return the sentence for a machine without ``mpirun``."""
    build = probe.engine_build()
    why = build.error or f"the engine uses {build.library or 'no MPI'}"
    return (
        f"no mpirun beside the engine's MPI or on PATH ({why}); put your MPI's bin folder on PATH, "
        "or use your site's launcher (srun, mpiexec); see horovodrun --check-build"
    )


class _Export(argparse.Action):
    """Collects {variable: text} of the options that were given, in ``namespace.exported``."""

    def __init__(self, option: Option, constant: bool | None, **kwargs: object) -> None:
        super().__init__(nargs=0 if option.is_switch else None, **kwargs)  # type: ignore[arg-type]
        self.option = option
        self.constant = constant

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        """Check the value and keep the variable's text."""
        value = self.constant if self.constant is not None else str(values)
        try:
            text = self.option.environment_text(value)
        except ValueError as error:
            raise argparse.ArgumentError(self, str(error)) from error
        namespace.exported = {**namespace.exported, self.option.env: text}


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of ``horovodrun``."""
    parser = argparse.ArgumentParser(
        prog="horovodrun",
        description="Start a data-parallel job on MPI.",
        usage="horovodrun -np N [options] COMMAND [ARGUMENT ...]",
        allow_abbrev=False,
    )
    parser.set_defaults(exported={})
    add = parser.add_argument
    add("-v", "--version", action="version", version=horovod.__version__)
    add("-np", "-n", "--num-proc", type=int, metavar="N", help="number of ranks")
    add("-cb", "--check-build", action="store_true", help="say what this build can do, and exit")
    add("--config-file", metavar="YAML", help="options from a file; the command line beats it")
    add("--verbose", action="store_true", help="print the mpirun command")
    add("--output-filename", metavar="DIR", help="one output file per rank in DIR")
    add("--mpi-args", metavar="WORDS", help="more options for mpirun, in one quoted string")
    add("--binding-args", metavar="WORDS", help="options for mpirun instead of binding to nothing")
    add("--network-interfaces", "--network-interface", metavar="A,B", help="interfaces for MPI")
    add("-p", "--ssh-port", type=int, metavar="PORT", help="ssh port of the other hosts")
    hosts = parser.add_mutually_exclusive_group()
    hosts.add_argument("-H", "--hosts", metavar="HOST:SLOTS,...", help="hosts and their slots")
    hosts.add_argument("-hostfile", "--hostfile", metavar="FILE", help="lines: HOST slots=N")
    controller = parser.add_mutually_exclusive_group()
    controller.add_argument("--mpi", action="store_true", help="accepted: the only controller")
    controller.add_argument("--gloo", action="store_true", help=argparse.SUPPRESS)
    controller.add_argument("--jsrun", action="store_true", help=argparse.SUPPRESS)
    add("--disable-cache", action="store_true", help=argparse.SUPPRESS)
    _add_exported(parser)
    add("command", nargs=argparse.REMAINDER, help="program and arguments of every rank")
    return parser


def _add_exported(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("options that set a HOROVOD_* variable of the job")
    for option in OPTIONS:
        spellings = [(option.flag, True), (f"--no-{option.flag[2:]}", False)]
        if option.flag == "--log-with-timestamp":
            spellings[1] = ("--log-without-timestamp", False)
        for flag, value in spellings if option.is_switch else [(option.flag, None)]:
            group.add_argument(
                flag,
                action=_Export,
                option=option,
                constant=value,
                dest=argparse.SUPPRESS,
                metavar=option.metavar or None,
                help=f"{option.help} ({option.env})" if value is not False else argparse.SUPPRESS,
            )


if __name__ == "__main__":
    sys.exit(main())
