"""A job that a library describes by attributes, as Horovod's own launcher does.

``horovod.runner._HorovodArgs`` and ``horovod.runner.launch._run`` are how libraries start jobs from
Python; ``mpi_run`` and ``gloo_run`` take ``Settings``. All become a command line of ``horovodrun``.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from horovod.common.util import env as variables
from horovod.runner.common.util.config_parser import attribute_of, set_env_from_args
from horovod.runner.common.util.settings import BaseSettings
from horovod.runner.options import OPTIONS

_VALUES = {
    "num_proc": "--num-proc",
    "hosts": "--hosts",
    "hostfile": "--hostfile",
    "host_discovery_script": "--host-discovery-script",
    "nic": "--network-interfaces",
    "nics": "--network-interfaces",
    "ssh_port": "--ssh-port",
    "ssh_identity_file": "--ssh-identity-file",
    "output_filename": "--output-filename",
    "mpi_args": "--mpi-args",
    "binding_args": "--binding-args",
    "config_file": "--config-file",
    "min_num_proc": "--min-num-proc",
    "max_num_proc": "--max-num-proc",
    "slots": "--slots-per-host",
    "reset_limit": "--reset-limit",
}
"""Attributes that take a value: attribute -> flag."""
_SWITCHES = {
    "verbose": "--verbose",
    "use_gloo": "--gloo",
    "use_mpi": "--mpi",
    "use_jsrun": "--jsrun",
    "tcp_flag": "--tcp",
    "disable_cache": "--disable-cache",
    "prefix_output_with_timestamp": "--prefix-output-with-timestamp",
    "torus_allreduce": "--torus-allreduce",
}
_OF_VARIABLES = tuple(attribute_of(option) for option in OPTIONS)
_OTHERS = ("check_build", "command", "cooldown_range", "executable", "run_func")


class HorovodArgs(argparse.Namespace):
    """Options of a job as attributes, named as the long flags; None: not given."""

    def __init__(self) -> None:
        super().__init__(**dict.fromkeys((*_VALUES, *_SWITCHES, *_OF_VARIABLES, *_OTHERS)))
        self.num_proc = 1


def run(arguments: Any) -> list[Any] | None:
    """Run the job that ``arguments`` describe, and wait for its end. **Local.**

    Args:
        arguments: ``HorovodArgs``, or what ``launch.parse_args`` returns.

    Returns:
        What the ranks returned, by rank, where ``run_func`` is given; None for a command.

    Raises:
        RuntimeError: The job failed; RankError where it calls a function.
        ValueError: An option is wrong or missing.
        NoWayError: MPI is asked for, and there is none.
    """
    from horovod.runner import function, launch

    if hasattr(arguments, "exported"):
        _raise_failure(launch.start(arguments))
        return None
    words = option_words(arguments)
    with variables(**set_env_from_args({}, arguments)):
        if arguments.run_func:
            return function.call_on_ranks(
                arguments.run_func,
                words,
                shared=bool(
                    arguments.hosts or arguments.hostfile or arguments.host_discovery_script
                ),
                executable=arguments.executable,
            )
        command = arguments.command
        command = [command] if isinstance(command, str) else list(command or ())
        _raise_failure(launch.start(launch.parse_options([*words, "--", *command])))
    return None


def run_settings(
    settings: BaseSettings,
    nics: Iterable[str] | None,
    env: Mapping[str, str],
    command: Sequence[str],
    *,
    way: str,
) -> None:
    """Run ``command`` on the ranks that ``settings`` describe; ``way``: "use_mpi" or "use_gloo".

    Errors as of ``run``. **Local.**
    """
    if settings.elastic:
        raise NotImplementedError(f"settings of an elastic job: {way} starts jobs of a fixed size")
    job = HorovodArgs()
    same = ("num_proc", "ssh_port", "ssh_identity_file", "tcp_flag", "binding_args")
    for name in (*same, "output_filename", "prefix_output_with_timestamp"):
        setattr(job, name, getattr(settings, name))
    job.hosts = getattr(settings, "hosts", None)
    job.nics = nics or settings.nics
    job.verbose = settings.verbose >= 2
    job.command = command
    setattr(job, way, True)
    if way == "use_mpi":
        job.mpi_args = settings.extra_mpi_args
    if settings.start_timeout is not None:
        left = settings.start_timeout.remaining()
        job.start_timeout = max(1.0, left)
    gone: dict[str, str | None] = dict.fromkeys(name for name in os.environ if name not in env)
    with variables(**{**gone, **env}):
        run(job)


def option_words(arguments: Any) -> list[str]:
    """Return the words of ``horovodrun`` for the options that no variable stands for.

    **Local.** Attributes that mean nothing here cost a warning.
    """
    words = []
    for name, value in vars(arguments).items():
        if value is None or name in (*_OF_VARIABLES, *_OTHERS):
            continue
        if name in _SWITCHES:
            words += [_SWITCHES[name]] if value else []
        elif name in _VALUES:
            is_set = isinstance(value, Iterable) and not isinstance(value, str)
            words.append(f"{_VALUES[name]}={','.join(sorted(value)) if is_set else value}")
        else:
            text = f"horovod.runner: {name} is ignored: horovodrun has no such option"
            warnings.warn(text, stacklevel=4)
    if arguments.cooldown_range:
        words += ["--blacklist-cooldown-range", *map(str, arguments.cooldown_range)]
    return words


def _raise_failure(code: int) -> None:
    if code:
        raise RuntimeError(f"the job failed with exit code {code}; its output says why")
