"""``horovod.run``: calls a function on every rank, from a script or a notebook."""

from __future__ import annotations

import codecs
import contextlib
import functools
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from horovod.runner import launch
from horovod.runner.call import Outcome
from horovod.runner.supervise import RunningJob, Sink

END_SECONDS = 10.0


class RankError(RuntimeError):
    """A rank of ``horovod.run`` failed; the message holds its traceback.

    Attributes:
        rank: The rank that was the first to fail, -1 when no rank ever ran.
    """

    def __init__(self, message: str, rank: int) -> None:
        super().__init__(message)
        self.rank = rank


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Sequence[int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: bool | int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: Sequence[str] | str | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Call ``func(*args, **kwargs)`` on every rank and return the results by rank. **Local.**

    What the ranks write appears in ``sys.stdout`` and ``sys.stderr``. Function, arguments and
    results travel by cloudpickle, through a folder: with ``hosts`` in the working directory, which
    all hosts must then share.

    Args:
        func: What to call; it calls ``hvd.init()`` itself.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        num_proc: Number of ranks (default 1).
        min_num_proc: As ``horovodrun --min-np``; the job is elastic.
        max_num_proc: As ``horovodrun --max-np``; the job is elastic.
        slots: As ``horovodrun --slots``.
        reset_limit: As ``horovodrun --reset-limit``.
        cooldown_range: As ``horovodrun --blacklist-cooldown-range``: two numbers.
        hosts: As ``horovodrun -H``.
        hostfile: As ``horovodrun --hostfile``.
        host_discovery_script: As ``horovodrun --host-discovery-script``; the job is elastic.
        start_timeout: As ``horovodrun --start-timeout``.
        ssh_port: As ``horovodrun --ssh-port``.
        ssh_identity_file: As ``horovodrun --ssh-identity-file``.
        disable_cache: Accepted without effect.
        output_filename: As ``horovodrun --output-filename``.
        verbose: Print the command that starts the ranks.
        use_gloo: As ``horovodrun --gloo``.
        use_mpi: As ``horovodrun --mpi``.
        mpi_args: As ``horovodrun --mpi-args``.
        network_interface: Older name of ``network_interfaces``.
        network_interfaces: As ``horovodrun --network-interfaces``.
        executable: The Python of the ranks (default: this one).
        np: Older name of ``num_proc``.
        min_np: Older name of ``min_num_proc``.
        max_np: Older name of ``max_num_proc``.

    Raises:
        RankError: A rank failed; its own exception is the cause.
        ValueError: An option is wrong.
        NoWayError: ``use_mpi``, and there is no MPI.
    """
    least = min_np if min_num_proc is None else min_num_proc
    most = max_np if max_num_proc is None else max_num_proc
    ranks = np if num_proc is None else num_proc
    interfaces = network_interfaces or network_interface
    if interfaces is not None and not isinstance(interfaces, str):
        interfaces = ",".join(interfaces)
    options = {
        "--num-proc": (1 if least is None else None) if ranks is None else ranks,
        "--min-num-proc": least,
        "--max-num-proc": most,
        "--slots": slots,
        "--reset-limit": reset_limit,
        "--host-discovery-script": host_discovery_script,
        "--hosts": hosts,
        "--hostfile": hostfile,
        "--start-timeout": start_timeout,
        "--ssh-port": ssh_port,
        "--ssh-identity-file": ssh_identity_file,
        "--output-filename": output_filename,
        "--mpi-args": mpi_args,
        "--network-interfaces": interfaces,
    }
    words = [f"{flag}={value}" for flag, value in options.items() if value is not None]
    words += ["--verbose"] if verbose else []
    words += ["--gloo"] if use_gloo else []
    words += ["--mpi"] if use_mpi else []
    if cooldown_range is not None:
        words += ["--blacklist-cooldown-range", *map(str, cooldown_range)]
    function = functools.partial(func, *args, **(kwargs or {}))
    shared = bool(hosts or hostfile or host_discovery_script)
    return call_on_ranks(function, words, shared=shared, executable=executable)


def call_on_ranks(
    function: Callable[[], Any], words: Sequence[str], *, shared: bool, executable: str | None
) -> list[Any]:
    """Call ``function`` on every rank and return the results by rank. **Local.**

    Args:
        function: What to call.
        words: Options of ``horovodrun``.
        shared: There are other hosts: what travels does so through the working directory.
        executable: The Python of the ranks; None: this one.

    Raises:
        As ``run``.
    """
    with _folder(shared=shared) as folder:
        _save_call(folder, function)
        python = executable or sys.executable
        return _run([*words, python, "-m", "horovod.runner.call", str(folder)], folder)


@contextlib.contextmanager
def _folder(shared: bool) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=".horovod-run-", dir=os.getcwd() if shared else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _save_call(folder: Path, function: Callable[[], Any]) -> None:
    import cloudpickle  # type: ignore[import-untyped]

    call = cloudpickle.dumps(function)
    content = {"sys.path": [os.path.abspath(place) for place in sys.path], "call": call}
    (folder / "call.pickle").write_bytes(pickle.dumps(content))


def _run(argv: Sequence[str], folder: Path) -> list[Any]:
    arguments = launch.parse_options(argv)
    _, environ, command = launch.make_command(arguments, launch.say)
    limit_s = launch.start_timeout(environ)
    running = RunningJob(
        command.words,
        command.environ,
        out=_text_sink(sys.stdout),
        err=_text_sink(sys.stderr),
    )
    _wait(running, command.awaited, limit_s)
    running.drain()
    return _results(running, command.awaited or None, folder)


def _text_sink(stream: TextIO) -> Sink:
    """Return what writes bytes to ``stream``, which in a notebook is no file."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def sink(data: bytes) -> None:
        stream.write(decoder.decode(data))
        stream.flush()

    return sink


def _wait(running: RunningJob, size: int, limit_s: float | None) -> None:
    """Wait for the end; whatever interrupts the waiting ends the job."""
    deadline = None if limit_s is None else time.monotonic() + limit_s
    try:
        while running.process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.process.wait(0.5)
            running.end_after_failure()
            late = deadline is not None and time.monotonic() > deadline
            if late and len(running.started) < size and running.process.poll() is None:
                raise RankError(f"after {limit_s:g} s not all of {size} ranks have started", -1)
    except BaseException:
        running.send(signal.SIGTERM)
        try:
            running.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            running.process.kill()
        running.drain()
        raise


def _results(running: RunningJob, size: int | None, folder: Path) -> list[Any]:
    """Return the results by rank; of an elastic job, whose ``size`` is None, as many as there are.

    There, what ranks of earlier rounds have left counts for nothing where the job has ended well.
    """
    outcomes = _outcomes(folder)
    results = [value for _, (is_good, value) in sorted(outcomes.items()) if is_good]
    if running.process.returncode == 0 and size in (None, len(results)):
        return results
    failed = [rank for rank, (is_good, _) in sorted(outcomes.items()) if not is_good]
    failure = running.first_failure()
    rank = failure.rank if failure else next(iter(failed), -1)
    if rank in failed:
        _raise(rank, outcomes[rank][1])
    what = (
        failure.describe()
        if failure
        else f"the job ended with exit code {running.process.returncode}"
    )
    raise RankError(f"horovod.run: {what}", rank)


def _outcomes(folder: Path) -> dict[int, Outcome]:
    """Return what the ranks have left, by rank."""
    pattern = re.compile(r"result-(\d+)\.pickle")
    found: dict[int, Outcome] = {}
    for path in folder.iterdir():
        if match := pattern.fullmatch(path.name):
            found[int(match[1])] = pickle.loads(path.read_bytes())
    return found


def _raise(rank: int, description: Mapping[str, Any]) -> None:
    cause = pickle.loads(description["error"]) if description["error"] else None
    text = f"horovod.run: rank {rank} failed:\n{description['traceback']}"
    raise RankError(text, rank) from cause
