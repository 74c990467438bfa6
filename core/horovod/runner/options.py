"""The options of ``horovodrun`` that become environment variables: one table.

A row says flag, key of the config file and variable. An option that nobody gives exports nothing:
a parameter stays free for the tuner, and the caller's own environment stays in force.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from horovod.tuning.settings import VARIABLES
from horovod.tuning.table import ENGINE_PARAMETERS, Parameter

Encode = Callable[[str], str]

_PARSERS = {variable.env: variable.parse for variable in VARIABLES}


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option.

    Attributes:
        flag: Flag on the command line, with its two dashes.
        env: Variable that it sets.
        key: "section.name" in the YAML config file.
        help: One line.
        metavar: Name of the value; "" for a switch, which also gets a ``--no-`` flag.
        inverted: A switch whose variable means the opposite.
        encode: Text on the command line or in the file -> text of the variable.
    """

    flag: str
    env: str
    key: str
    help: str
    metavar: str = ""
    inverted: bool = False
    encode: Encode = str.strip

    @property
    def is_switch(self) -> bool:
        """Whether it takes no value."""
        return not self.metavar

    def environment_text(self, value: str | bool) -> str:
        """Return the variable's text for ``value``.

        Raises:
            ValueError: The variable does not take that value; the message names unit and range.
        """
        if isinstance(value, bool):
            return str(int(value != self.inverted))
        text = self.encode(value)
        parse = _PARSERS.get(self.env)
        if parse is not None:
            parse(text)
        return text


def encode_shown(parameter: Parameter, text: str) -> str:
    """Return ``text``, in the unit that people read, as the variable wants it, as logs write it.

    12.2035 MiB are ``int(12.2035 * 2**20)`` bytes.

    Raises:
        ValueError: Not a number in the valid domain.
    """
    source = f"{parameter.flag} {text}"
    try:
        value = parameter.of_shown(float(text), source=source)
        return str(parameter.check(value, source=source))
    except (ValueError, OverflowError) as error:
        if "expected" in str(error):
            raise
        unit = parameter.shown_unit
        raise ValueError(f"{parameter.flag}: expected a number of {unit}, got {text!r}") from None


def check_seconds(text: str, name: str = "HOROVOD_START_TIMEOUT") -> str:
    """Return ``text``, a positive number of seconds; ``name``: of its variable.

    Raises:
        ValueError: It is none.
    """
    try:
        good = 0 < float(text) < math.inf
    except ValueError:
        good = False
    if not good:
        raise ValueError(f"{name}: expected a positive number of seconds, got {text!r}")
    return text.strip()


def _tunable(parameter: Parameter) -> Option:
    is_scaled = parameter.units_in_shown != 1
    unit = parameter.shown_unit if is_scaled else parameter.unit
    return Option(
        flag=parameter.flag,
        env=parameter.env,
        key=f"params.{parameter.flag.removeprefix('--').replace('-', '_')}",
        help=f"{parameter.name}, in {unit}; given: constant, else free for the tuner",
        metavar="" if parameter.type is bool else unit.upper() if unit.isalpha() else "N",
        encode=functools.partial(encode_shown, parameter) if is_scaled else str.strip,
    )


def _autotune(name: str, env: str, metavar: str, help: str) -> Option:
    flag = f"--autotune-{name.replace('_', '-')}"
    return Option(
        flag=flag,
        env=f"HOROVOD_AUTOTUNE_{env}",
        key=f"autotune.{name}",
        metavar=metavar,
        help=help,
    )


OPTIONS: tuple[Option, ...] = (
    *(_tunable(parameter) for parameter in ENGINE_PARAMETERS),
    Option(
        flag="--autotune",
        env="HOROVOD_AUTOTUNE",
        key="autotune.enabled",
        help="tune the communication parameters while the job trains",
    ),
    _autotune("log_file", "LOG", "CSV", "trial log; its last line is the best configuration"),
    _autotune("db", "DB", "FILE", "SQLite log, file or folder (default: beside the CSV)"),
    _autotune("explore", "EXPLORE", "WORD", "fp16 or bf16: try whether such gradients pay"),
    _autotune("warmup_samples", "WARMUP_SAMPLES", "N", "samples thrown away at the start"),
    _autotune("steps_per_sample", "STEPS_PER_SAMPLE", "N", "training steps in one sample"),
    _autotune("bayes_opt_max_samples", "BAYES_OPT_MAX_SAMPLES", "N", "trials, default included"),
    _autotune("gaussian_process_noise", "GAUSSIAN_PROCESS_NOISE", "X", "noise (default: learned)"),
    _autotune("budget", "BUDGET", "SHARE", "largest share of time that exploring may lose"),
    _autotune("seed", "SEED", "N", "reproducible proposals"),
    Option(
        flag="--timeline-filename",
        env="HOROVOD_TIMELINE",
        key="timeline.filename",
        metavar="JSON",
        help="write a Chrome-trace timeline",
    ),
    Option(
        flag="--timeline-mark-cycles",
        env="HOROVOD_TIMELINE_MARK_CYCLES",
        key="timeline.mark_cycles",
        help="mark the engine's cycles in the timeline",
    ),
    Option(
        flag="--stall-check",
        env="HOROVOD_STALL_CHECK_DISABLE",
        key="stall_check.enabled",
        inverted=True,
        help="warn when a tensor waits for a rank",
    ),
    Option(
        flag="--stall-check-warning-time-seconds",
        env="HOROVOD_STALL_CHECK_TIME_SECONDS",
        key="stall_check.warning_time_seconds",
        metavar="S",
        help="wait before the warning",
    ),
    Option(
        flag="--stall-check-shutdown-time-seconds",
        env="HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        key="stall_check.shutdown_time_seconds",
        metavar="S",
        help="wait before the job ends (0: never)",
    ),
    Option(
        flag="--mpi-threads-disable",
        env="HOROVOD_MPI_THREADS_DISABLE",
        key="library_options.mpi_threads_disable",
        help="accepted for compatibility",
    ),
    Option(
        flag="--num-nccl-streams",
        env="HOROVOD_NUM_NCCL_STREAMS",
        key="library_options.num_nccl_streams",
        metavar="N",
        help="streams for NCCL",
    ),
    Option(
        flag="--thread-affinity",
        env="HOROVOD_THREAD_AFFINITY",
        key="library_options.thread_affinity",
        metavar="CORES",
        help="cores of the engine threads, one per local rank",
    ),
    Option(
        flag="--start-timeout",
        env="HOROVOD_START_TIMEOUT",
        key="library_options.start_timeout",
        metavar="S",
        help="longest wait for all ranks to start (default: a warning after 30 s, no end)",
        encode=check_seconds,
    ),
    Option(
        flag="--gloo-timeout-seconds",
        env="HOROVOD_GLOO_TIMEOUT_SECONDS",
        key="library_options.gloo_timeout_seconds",
        metavar="S",
        help="without MPI: longest wait of a rank for the others in hvd.init()",
    ),
    Option(
        flag="--elastic-timeout",
        env="HOROVOD_ELASTIC_TIMEOUT",
        key="elastic.timeout",
        metavar="S",
        help="elastic: longest wait for --min-np ranks (default: 600)",
        encode=functools.partial(check_seconds, name="HOROVOD_ELASTIC_TIMEOUT"),
    ),
    Option(
        flag="--log-level",
        env="HOROVOD_LOG_LEVEL",
        key="logging.level",
        metavar="LEVEL",
        help="trace, debug, info, warning, error or fatal",
    ),
    Option(
        flag="--log-with-timestamp",
        env="HOROVOD_LOG_HIDE_TIME",
        key="logging.with_timestamp",
        inverted=True,
        help="times in log lines",
    ),
)

BY_KEY: dict[str, Option] = {option.key: option for option in OPTIONS}


def job_environment(
    environ: Mapping[str, str], config: Mapping[str, str], command_line: Mapping[str, str]
) -> dict[str, str]:
    """Return the job's environment: command line > config file > environment > default.

    Args:
        environ: The caller's environment, kept as it is where nothing else is said.
        config: {variable: text} from the config file.
        command_line: {variable: text} from the flags.
    """
    return {**environ, **config, **command_line}
