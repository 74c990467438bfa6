"""The command line of ``horovodrun``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import horovod
from horovod.common.launched import CONTROLLER
from horovod.runner.options import OPTIONS, Option

NOT_MET = {
    "--jsrun": ("jsrun", "mpirun or horovodrun itself (--gloo) starts the ranks"),
    "--torus-allreduce": ("torus", "there is no torus allreduce in this package"),
}
"""Options of Horovod that cannot be met here and cost a warning: flag -> (destination, why)."""

_OF_ELASTIC = "only --min-np, --max-np or --host-discovery-script make a job elastic"
OF_ELASTIC_JOBS = {
    "--slots": ("slots", _OF_ELASTIC),
    "--reset-limit": ("reset_limit", _OF_ELASTIC),
    "--blacklist-cooldown-range": ("cooldown_range", _OF_ELASTIC),
    "--elastic-timeout": ("HOROVOD_ELASTIC_TIMEOUT", _OF_ELASTIC),
}
"""Options that mean nothing to other jobs: flag -> (destination or variable, why)."""

WORDS_FOR_MPIRUN = ("--mpi-args", "--binding-args")


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


class _Controller(argparse.Action):
    """Makes --mpi and --gloo values of HOROVOD_CONTROLLER."""

    def __init__(self, **kwargs: object) -> None:
        super().__init__(nargs=0, **kwargs)  # type: ignore[arg-type]

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        """Keep the variable's text."""
        name = self.option_strings[0].removeprefix("--")
        namespace.exported = {**namespace.exported, CONTROLLER: name}


class _Parser(argparse.ArgumentParser):
    """Takes words for mpirun as they are, also a single one that begins with a dash."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        given = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(self._joined(given), namespace)

    def _joined(self, words: list[str]) -> list[str]:
        """Return ``words`` with ``--mpi-args=X`` for ``--mpi-args X``, up to the command."""
        joined: list[str] = []
        while words and words[0].startswith("-") and words[0] != "--":
            action = self._option_string_actions.get(words[0])
            count = 0 if action is None else 1 if action.nargs is None else int(action.nargs)
            taken, words = words[: 1 + count], words[1 + count :]
            if taken[0] in WORDS_FOR_MPIRUN and len(taken) == 2:
                taken = ["=".join(taken)]
            joined += taken
        return joined + words


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of ``horovodrun``."""
    parser = _Parser(
        prog="horovodrun",
        description="Start a data-parallel job, by MPI where there is one, else by itself.",
        usage="horovodrun -np N [options] COMMAND [ARGUMENT ...]",
        allow_abbrev=False,
    )
    parser.set_defaults(exported={})
    add = parser.add_argument
    add("-v", "--version", action="version", version=horovod.__version__)
    add("-np", "-n", "--num-proc", type=int, metavar="N", help="number of ranks")
    add("-cb", "--check-build", action="store_true", help="say what this build can do, and exit")
    add("--config-file", metavar="YAML", help="options from a file; the command line beats it")
    add("--verbose", action="store_true", help="print the command that starts the ranks")
    add(
        "--output-filename",
        metavar="DIR",
        help="also write DIR/rank.N/stdout and DIR/rank.N/stderr",
    )
    add(
        "-prefix-timestamp",
        "--prefix-output-with-timestamp",
        action="store_true",
        help="every line of output begins with the time",
    )
    add("--mpi-args", metavar="WORDS", help="more options for mpirun, in one quoted string")
    add("--binding-args", metavar="WORDS", help="options for mpirun instead of binding to nothing")
    add(
        "--network-interfaces",
        "--network-interface",
        action="append",
        metavar="A,B",
        help="network interfaces to use, by commas or by repeating the option",
    )
    add("--tcp", action="store_true", help="MPI uses TCP, whatever else the network can")
    add("-i", "--ssh-identity-file", metavar="FILE", help="ssh key for the other hosts")
    add("-p", "--ssh-port", type=int, metavar="PORT", help="ssh port of the other hosts")
    hosts = parser.add_mutually_exclusive_group()
    hosts.add_argument("-H", "--hosts", metavar="HOST:SLOTS,...", help="hosts and their slots")
    hosts.add_argument("-hostfile", "--hostfile", metavar="FILE", help="lines: HOST slots=N")
    hosts.add_argument(
        "--host-discovery-script",
        metavar="COMMAND",
        help="elastic: prints lines HOST or HOST:SLOTS; asked every second",
    )
    controller = parser.add_mutually_exclusive_group()
    for flag, text in (
        ("--mpi", "mpirun starts the ranks, or nothing does (default: where there is an MPI)"),
        ("--gloo", "the ranks start without MPI, here and over ssh"),
    ):
        controller.add_argument(flag, action=_Controller, dest=argparse.SUPPRESS, help=text)
    add("--disable-cache", action="store_true", help="accepted: nothing is cached")
    add("--no-torus-allreduce", action="store_true", help=argparse.SUPPRESS)  # there is none
    for flag, (name, _) in NOT_MET.items():
        add(flag, dest=name, help=argparse.SUPPRESS, action="store_true")
    _add_elastic(parser)
    _add_exported(parser)
    add("command", nargs=argparse.REMAINDER, help="program and arguments of every rank")
    return parser


def _add_elastic(parser: argparse.ArgumentParser) -> None:
    """Add what makes a job elastic: one of the first two, or a discovery script."""
    add = parser.add_argument_group("elastic jobs, which outlive their ranks").add_argument
    for flags, name, text in (
        (("--min-np", "--min-num-proc"), "min_num_proc", "ranks without which the job waits"),
        (("--max-np", "--max-num-proc"), "max_num_proc", "the most ranks (default: all slots)"),
        (("--slots", "--slots-per-host"), "slots", "of a host that names none (default: 1)"),
        (("--reset-limit",), "reset_limit", "the job ends when ranks had to meet anew more often"),
    ):
        add(*flags, dest=name, type=int, metavar="N", help=text)
    add(
        "--blacklist-cooldown-range",
        dest="cooldown_range",
        type=int,
        nargs=2,
        metavar=("MIN", "MAX"),
        help="a host that fails again and again comes back after so many seconds (default: never)",
    )


def _add_exported(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("options that set a HOROVOD_* variable of the job")
    for option in OPTIONS:
        for flag, value in spellings(option):
            shown = flag == option.flag
            group.add_argument(
                flag,
                action=_Export,
                option=option,
                constant=value,
                dest=argparse.SUPPRESS,
                metavar=option.metavar or None,
                help=f"{option.help} ({option.env})" if shown else argparse.SUPPRESS,
            )


def spellings(option: Option) -> list[tuple[str, bool | None]]:
    """Return the flags of ``option`` and what each sets it to; None: what follows the flag."""
    if not option.is_switch:
        return [(option.flag, None)]
    if option.flag == "--log-with-timestamp":
        return [
            (option.flag, True),
            ("--log-without-timestamp", False),
            ("--no-log-hide-timestamp", True),  # older names
            ("--log-hide-timestamp", False),
        ]
    return [(option.flag, True), (f"--no-{option.flag[2:]}", False)]
