"""``autotune best | show | replay``: argument parsing; the work is in other modules.

The answer goes to standard output and nothing else does. Exit codes: 0 answer given, 1 no answer
(the reason on standard error), 2 wrong usage. ``replay`` ends with its command's code; 127: no such
command, 126: not executable, as in a shell.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from autotune.errors import AutotuneError
from autotune.replay import FORMATS, environment, render
from autotune.show import result_of, table
from autotune.storage.reader import LogView, read_log


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Without the program's name; None: those of this process.

    Returns:
        The exit code.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    options, command = _parse(given)
    try:
        return _run(options, command)
    except AutotuneError as error:
        _say(str(error))
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the options, and what follows ``--``."""
    parser = _parser()
    at = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:at])
    command = arguments[at + 1 :]
    if options.task == "replay" and not command:
        parser.error("replay: no command: expected autotune replay LOG -- COMMAND...")
    if options.task != "replay" and at < len(arguments):
        parser.error(f"{options.task}: takes no command after --")
    return options, command


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="autotune", description="Reads and replays tuning logs.")
    tasks = parser.add_subparsers(dest="task", required=True, metavar="best|show|replay")
    log = "CSV log (ours or of any Horovod release), SQLite log, or folder of SQLite logs"
    best = tasks.add_parser("best", help="print the best configuration")
    best.add_argument("log", metavar="LOG", help=log)
    best.add_argument("--format", choices=list(FORMATS), default="text", help="default: text")
    show = tasks.add_parser("show", help="print all trials")
    show.add_argument("log", metavar="LOG", help=log)
    replay = tasks.add_parser(
        "replay",
        help="run a command under the best configuration",
        usage="autotune replay LOG -- COMMAND...",
    )
    replay.add_argument("log", metavar="LOG", help=log)
    return parser


def _run(options: argparse.Namespace, command: list[str]) -> int:
    view = read_log(options.log)
    for warning in view.warnings:
        _say(warning)
    if options.task == "show":
        print(table(view), flush=True)
        return 0
    result = result_of(view)
    if not view.finished:
        _say(f"{options.log}: tuning has not finished; this is the best {_so_far(view)}")
    if options.task == "replay":
        return _replay(environment(result.params), command)
    print(render(result, options.format), flush=True)
    return 0


def _so_far(view: LogView) -> str:
    count = len(view.trials)
    return f"of {count} trial{'' if count == 1 else 's'} so far"


def _replay(settings: dict[str, str], command: list[str]) -> int:
    """Become ``command``, with the settings in its environment and the tuner off."""
    if os.environ.get("HOROVOD_AUTOTUNE", "0").strip() not in {"", "0"}:
        _say("HOROVOD_AUTOTUNE is switched off for the replayed command")
    child = {**os.environ, **settings, "HOROVOD_AUTOTUNE": "0"}
    try:
        os.execvpe(command[0], command, child)
    except (FileNotFoundError, NotADirectoryError):
        _say(f"{command[0]}: no such command")
        return 127
    except (OSError, ValueError) as error:
        _say(f"{command[0]}: cannot be run ({error})")
        return 126


def _say(text: str) -> None:
    print("autotune:", " ".join(text.splitlines()), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
