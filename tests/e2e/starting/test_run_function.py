"""``horovod.run``: results by rank, errors of a rank in the caller, options as horovodrun's."""

from __future__ import annotations

import inspect
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import horovod
from e2e.commands import root_variables, wait_until
from horovod.runner import RankError


def where_am_i(tag: str, *, double: bool = False) -> tuple[Any, ...]:
    import torch

    import horovod.torch as hvd

    hvd.init()
    print(f"in rank {hvd.rank()}", flush=True)
    total = hvd.allreduce(torch.full((3,), 1.0 + hvd.rank()), op=hvd.Sum)
    return hvd.rank(), hvd.size(), tag * (1 + double), total.tolist()


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
    for wrong in ({"host_discovery_script": "x"}, {"hosts": "a;b"}, {"num_proc": -1}):
        with pytest.raises(ValueError, match=r"fixed size|HOST:SLOTS|at least 1"):
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
    for name in "min_num_proc max_num_proc slots reset_limit cooldown_range min_np max_np".split():
        with (
            pytest.warns(UserWarning, match=f"{name} ignored: the job has a fixed size"),
            pytest.raises(ValueError, match="HOST:SLOTS"),
        ):
            horovod.run(where_am_i, ("a",), hosts="a;b", **{name: 1})
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


def test_wishes_of_older_calls_are_one_warning() -> None:
    with pytest.warns(UserWarning, match="slots ignored"):
        assert horovod.run(lambda x: x + 1, args=(1,), num_proc=2, slots=2) == [2, 2]
