"""``horovod.run``: results by rank, errors of a rank in the caller, options as horovodrun's."""

from __future__ import annotations

import functools
import inspect
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import horovod
from e2e.commands import root_variables, wait_until
from horovod import runner
from horovod.runner import RankError, gloo_run, launch, mpi_run
from horovod.runner.common.util import hosts, settings, timeout
from horovod.runner.http import http_server


def where_am_i(tag: str, *, double: bool = False) -> tuple[Any, ...]:
    """Of Horovod without torch, which is not tested here and takes long to import."""
    import numpy

    from horovod.common import arrays, basics, reduce_ops
    from horovod.tuning import autotuning

    autotuning.init()
    print(f"in rank {basics.rank()}", flush=True)
    total = arrays.allreduce(numpy.full(3, 1.0 + basics.rank()), reduce_ops.Sum)
    return basics.rank(), basics.size(), tag * (1 + double), total.tolist()


def fail_on_rank_1() -> None:
    if os.environ["HOROVOD_RANK"] == "1":
        raise KeyError("the reason")
    time.sleep(30)


def die_on_rank_1() -> None:
    if os.environ["HOROVOD_RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(30)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name, text in root_variables().items():
        monkeypatch.setenv(name, text)


def test_results_come_by_rank_and_output_appears(capsys: pytest.CaptureFixture[str]) -> None:
    results = horovod.run(where_am_i, ("ab",), {"double": True}, num_proc=2)
    assert results == [(rank, 2, "abab", [3.0] * 3) for rank in (0, 1)]
    assert sorted(capsys.readouterr().out.split("\n"))[1:] == ["in rank 0", "in rank 1"]


def test_an_error_of_a_rank_is_raised_with_its_traceback() -> None:
    with pytest.raises(RankError, match="fail_on_rank_1") as caught:
        horovod.run(fail_on_rank_1, np=2)
    assert caught.value.rank == 1
    assert isinstance(caught.value, RuntimeError)
    assert isinstance(caught.value.__cause__, KeyError)
    assert caught.value.__cause__.args == ("the reason",)


def test_a_rank_that_is_killed_is_named() -> None:
    with pytest.raises(RankError, match=r"rank 1 on \S+ was the first to fail: .*SIGKILL"):
        horovod.run(die_on_rank_1, num_proc=2)


def test_what_the_function_closes_over_travels() -> None:
    big = "x" * 100_000
    assert horovod.run(lambda: big.upper(), num_proc=1) == [big.upper()]


def test_options_are_those_of_horovodrun(tmp_path: Path) -> None:
    horovod.run(where_am_i, ("a",), num_proc=1, output_filename=str(tmp_path), start_timeout=30)
    assert (tmp_path / "rank.0/stdout").read_text() == "in rank 0\n"
    for wrong in ({"hosts": "a;b"}, {"num_proc": -1}, {"min_num_proc": 2, "max_num_proc": 1}):
        with pytest.raises(ValueError, match=r"HOST:SLOTS|at least"):
            horovod.run(where_am_i, ("a",), **wrong)  # type: ignore[arg-type]


def test_the_signature_is_horovods() -> None:
    """In its order, since arguments may be positional; no argument is silently ignored."""
    order = (
        "func args kwargs num_proc min_num_proc max_num_proc slots reset_limit cooldown_range "
        "hosts hostfile host_discovery_script start_timeout ssh_port ssh_identity_file "
        "disable_cache output_filename verbose use_gloo use_mpi mpi_args network_interface "
        "network_interfaces executable np min_np max_np"
    )
    assert list(inspect.signature(horovod.run).parameters) == order.split()
    with pytest.raises(TypeError, match="nonsense"):
        horovod.run(where_am_i, ("a",), nonsense=1)


def test_an_interrupt_ends_the_ranks(tmp_path: Path) -> None:
    code = (
        "import horovod, os, pathlib, time\n"
        f"path = pathlib.Path({str(tmp_path / 'pid')!r})\n"
        "def sleep():\n"
        "    path.with_suffix('.part').write_text(str(os.getpid()))\n"
        "    path.with_suffix('.part').rename(path)\n"
        "    time.sleep(60)\n"
        "horovod.run(sleep, num_proc=1)\n"
    )
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", code], os.environ)
    wait_until((tmp_path / "pid").exists, 30)
    os.kill(pid, signal.SIGINT)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0
    rank = Path("/proc") / (tmp_path / "pid").read_text()
    wait_until(lambda: not rank.exists(), 10)


def test_what_only_elastic_jobs_have_is_ignored_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert horovod.run(lambda x: x + 1, args=(1,), num_proc=2, slots=2) == [2, 2]
    assert "--slots is ignored" in capsys.readouterr().err


def test_an_elastic_job_returns_the_results_of_its_last_ranks() -> None:
    def train() -> tuple[int, int]:
        from horovod.common import basics
        from horovod.tuning import autotuning

        autotuning.init()
        return basics.rank(), basics.size()

    assert horovod.run(train, num_proc=2, min_num_proc=1, max_num_proc=2) == [(0, 2), (1, 2)]


def described(**options: Any) -> Any:
    """Return a job of 2 ranks as libraries describe it."""
    job = runner._HorovodArgs()
    for name, value in {"num_proc": 2, **options}.items():
        setattr(job, name, value)
    return job


def test_libraries_describe_a_job_by_attributes(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "7")
    say = "import os; print('%(HOROVOD_RANK)s %(HOROVOD_CYCLE_TIME)s' % os.environ)"
    command = [sys.executable, "-c", say]
    for way in ({"use_gloo": True}, {"use_mpi": True}):
        assert launch._run(described(command=command, cycle_time_ms=3, **way)) is None
        assert sorted(capfd.readouterr().out.split("\n"))[1:] == ["0 3", "1 3"]
    assert os.environ["HOROVOD_CYCLE_TIME"] == "7"
    with pytest.raises(RuntimeError, match="failed with exit code 3"):
        launch._run(described(command=[sys.executable, "-c", "exit(3)"], use_gloo=True))
    double = functools.partial(where_am_i, "ab", double=True)
    results = launch._run(described(run_func=double, use_gloo=True))
    assert results == [(rank, 2, "abab", [3.0] * 3) for rank in (0, 1)]


def test_libraries_describe_a_job_by_settings(capfd: pytest.CaptureFixture[str]) -> None:
    say = "import os; print('%(HOROVOD_RANK)s %(WORD)s' % os.environ)"
    made = settings.Settings(num_proc=2, start_timeout=timeout.Timeout(60, "{activity}"))
    environ = {**os.environ, "WORD": "hi"}
    gloo_run.gloo_run(made, None, environ, "127.0.0.1", [sys.executable, "-c", say])
    mpi_run.mpi_run(made, None, environ, [sys.executable, "-c", say])
    assert sorted(capfd.readouterr().out.split("\n"))[1:] == ["0 hi", "0 hi", "1 hi", "1 hi"]
    assert "WORD" not in os.environ


def test_ranks_that_a_library_starts_meet_at_its_server() -> None:
    server = http_server.RendezvousServer()
    port = server.start()
    plan = hosts.get_host_assignments(hosts.parse_hosts("localhost:2"), 2)
    server.init(plan)
    script = f"{inspect.getsource(where_am_i)}\nprint(where_am_i('ab')[3])"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", f"from typing import Any\n{script}"],
            env={
                **os.environ,
                **gloo_run.create_run_env_vars("127.0.0.1", ["lo"], port),
                **gloo_run.create_slot_env_vars(slot),
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for slot in plan
    ]
    outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    server.stop()
    assert outputs == [f"in rank {rank}\n[3.0, 3.0, 3.0]\n" for rank in (0, 1)]
