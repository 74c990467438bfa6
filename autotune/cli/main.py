"""The command line ``autotune``: its arguments; the work is elsewhere.

The answer goes to standard output and nothing else does. Exit codes: 0 answer given, 1 no answer
(the reason on standard error), 2 wrong usage. ``run`` and ``replay`` end with their command's code;
127: no such command, 126: not executable, 130: interrupted from the keyboard, as in a shell.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence

from autotune.cli import launching
from autotune.cli.formats import FORMATS, render
from autotune.cli.show import table
from autotune.errors import AutotuneError, InvalidSettingError, NoAnswerError, OutputError
from autotune.result import Result, environment, read_result, start_up_of
from autotune.storage.reader import read_log
from autotune.trial import CommParams

_REPLAY = "HOROVOD_AUTOTUNE_REPLAY"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Without the program's name; None: those of this process.

    Returns:
        The exit code.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with _output():
            options, command = _parse(given)
            return _run(options, command)
    except BrokenPipeError:
        return 1
    except KeyboardInterrupt:
        return 130
    except AutotuneError as error:
        _say(str(error))
        return 1


@contextlib.contextmanager
def _output() -> Iterator[None]:
    """Let everything that is printed inside arrive, or be an error.

    What the terminal's encoding lacks is printed as its code.

    Raises:
        OutputError: Standard output cannot be written.
        BrokenPipeError: Nobody reads it any more.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError as error:
        if error.filename is not None:  # not from writing what is open
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise OutputError(f"standard output: cannot be written ({error.strerror})") from None


def _parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the options, and what follows ``--``."""
    parser = _parser()
    at = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:at])
    command = arguments[at + 1 :]
    if options.task == "replay" and not command:
        parser.error("replay: no command: expected autotune replay LOG -- COMMAND...")
    if options.task == "run" and (options.words or not command):
        parser.error(
            "run: no command: expected autotune run [options] -- COMMAND... (what is in a database "
            "is listed by: autotune runs FOLDER_OR_DB)"
        )
    if options.task not in ("replay", "run") and at < len(arguments):
        parser.error(f"{options.task}: takes no command after --")
    return options, command


@functools.cache
def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="autotune", description="Tunes jobs, reads and replays their logs."
    )
    tasks = parser.add_subparsers(
        dest="task", required=True, metavar="run|best|show|watch|report|replay|runs|timeline"
    )
    log = "CSV log (ours or of any Horovod release), SQLite log, or folder of SQLite logs"
    launching.add_options(
        tasks.add_parser(
            "run",
            help="run a command and tune its DistributedDataParallel or Horovod job",
            usage="autotune run [options] -- COMMAND...",
        )
    )
    best = tasks.add_parser("best", help="print the best configuration")
    best.add_argument("log", metavar="LOG", help=log + ", or a result saved by --format json")
    best.add_argument("--format", choices=list(FORMATS), default="text", help="default: text")
    best.add_argument(
        "--require-certified",
        action="store_true",
        help="no answer (exit 1) unless tuning has finished and the gain is certified",
    )
    show = tasks.add_parser("show", help="print all trials")
    show.add_argument("log", metavar="LOG", help=log)
    watch = tasks.add_parser("watch", help="show a log in the terminal while the job runs")
    watch.add_argument("log", metavar="LOG", help=log)
    watch.add_argument("--once", action="store_true", help="show it once, and end")
    report = tasks.add_parser("report", help="write one HTML file that explains a log")
    report.add_argument(
        "logs", metavar="LOG", nargs="+", help=log + "; several are compared, also by their ranks"
    )
    report.add_argument(
        "-o", "--output", metavar="FILE", default="report.html", help="default: report.html"
    )
    report.add_argument(
        "--timeline", metavar="FILE", nargs="+", help="timelines of the job: before, after"
    )
    report.add_argument(
        "--follow", action="store_true", help="write it anew while the job runs, until it ends"
    )
    report.add_argument(
        "--every",
        metavar="SECONDS",
        type=_seconds,
        default=10.0,
        help="with --follow: from one look at the log to the next; default: 10",
    )
    replay = tasks.add_parser(
        "replay",
        help="run a command under the best configuration",
        usage="autotune replay LOG -- COMMAND...",
    )
    replay.add_argument("log", metavar="LOG", help=log)
    runs = tasks.add_parser("runs", help="list the runs in databases: job, ranks, state, gain")
    runs.add_argument("log", metavar="FOLDER_OR_DB", help="SQLite log, folder of them, or a CSV")
    runs.add_argument(
        "--datasette-metadata",
        action="store_true",
        help="print what tables and columns mean, as JSON for 'datasette -m'",
    )
    timeline = tasks.add_parser("timeline", help="say where a job's time went")
    timeline.add_argument(
        "files", metavar="FILE", nargs="+", help="timeline; two are compared: before and after"
    )
    timeline.add_argument(
        "--format", choices=["text", "json"], default="text", help="default: text"
    )
    timeline.add_argument("--plot", metavar="FILE", help="draw each step: .svg, .png, .pdf")
    return parser


def _seconds(text: str) -> float:
    """Return a number of seconds, at least one."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 1 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"expected 1 to 3600 seconds, got {text!r}")
    return value


def _run(options: argparse.Namespace, command: list[str]) -> int:
    if options.task == "run":
        return _become(command, launching.environment_of(options, os.environ))
    if sys.stdout is None and options.task != "replay":
        raise OutputError("standard output: is closed: there is nowhere to put the answer")
    if options.task == "show":
        return _show(options.log)
    if options.task == "watch":
        return _watch(options)
    if options.task == "report":
        return _report(options)
    if options.task == "runs":
        return _runs(options)
    if options.task == "timeline":
        return _timeline(options)
    result = read_result(options.log)
    for warning in result.warnings:
        _say(warning)
    if options.task == "replay":
        return _replay(options.log, result, command)
    if options.require_certified:
        _require_certified(options.log, result)
    try:
        text = render(result, options.format)
    except InvalidSettingError as error:
        raise NoAnswerError(f"{options.log}: {error}") from None
    print(text, flush=True)
    return 0


def _show(log: str) -> int:
    view = read_log(log)
    text = table(view)
    for warning in view.warnings:
        _say(warning)
    print(text, flush=True)
    return 0


def _watch(options: argparse.Namespace) -> int:
    from autotune.report import watch

    watch.show(options.log, once=options.once)
    return 0


def _report(options: argparse.Namespace) -> int:
    from autotune.report import write

    warnings = write.report(
        options.logs,
        options.output,
        timelines=options.timeline or (),
        follow_s=options.every if options.follow else None,
        began=lambda: print(options.output, flush=True),
        say=_say,
    )
    for warning in warnings:
        _say(warning)
    return 0


def _runs(options: argparse.Namespace) -> int:
    from autotune.cli import runs

    if options.datasette_metadata:
        print(runs.datasette_metadata(options.log), flush=True)
        return 0
    listing = runs.list_all(options.log)
    for warning in listing.warnings:
        _say(warning)
    print(runs.table(listing), flush=True)
    return 0


def _timeline(options: argparse.Namespace) -> int:
    from autotune.timeline import analyse, plot, render

    reports = [analyse(path) for path in options.files]
    if options.plot:
        plot.save(reports, options.plot)
    if options.format == "json":
        print(render.as_json(reports), flush=True)
    else:
        render.show(reports)
    return 0


def _require_certified(log: str, result: Result) -> None:
    """Raise ``NoAnswerError`` unless the result is final and its gain is certified."""
    if result.certified and result.finished:
        return
    if not result.finished:
        why = "tuning has not finished, or the log does not say so"
    elif result.certified is None:
        why = "no certificate is known (a log of Horovod, or the database is not beside the log)"
    else:
        why = "the gain over the default was not certified"
    raise NoAnswerError(f"{log}: no certified answer: {why}")


def _replay(log: str, result: Result, command: list[str]) -> int:
    """Become ``command``, with the settings in its environment and the tuner off.

    The log's own path goes along, so that the job can say when it differs from the tuned one. A job
    that is to check the settings takes them from the log: explicit ones are never taken back.
    """
    if os.environ.get("HOROVOD_AUTOTUNE", "0").strip() not in {"", "0"}:
        _say("HOROVOD_AUTOTUNE is switched off for the replayed command")
    child = {**os.environ, "HOROVOD_AUTOTUNE": "0", _REPLAY: os.path.abspath(log)}
    if os.environ.get(f"{_REPLAY}_CHECK", "0").strip() in {"", "0"}:
        child |= environment(result.params)
    child = {**start_up_of(result), **child}
    if not isinstance(result.params, CommParams):
        child = launching.with_adapter(child)
    return _become(command, child)


def _become(command: list[str], child: Mapping[str, str]) -> int:
    """Become ``command`` in the environment ``child``; return only where that is not possible."""
    try:
        os.execvpe(command[0], command, child)
    except (FileNotFoundError, NotADirectoryError):
        _say(f"{command[0]}: no such command")
        return 127
    except (OSError, ValueError) as error:
        _say(f"{command[0]}: cannot be run ({error})")
        return 126


def _say(text: str) -> None:
    if sys.stderr is not None:  # print() would take standard output instead
        with contextlib.suppress(OSError):
            print("autotune:", " ".join(text.splitlines()), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
