"""What rank 0 says once about a job that starts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("horovod._engine")

from autotune.service import priority
from horovod.common import secret
from horovod.common.starting import _warn_once
from horovod.common.world import place
from horovod.tuning.session import Session
from horovod.tuning.settings import read_settings

WORLD: Any = SimpleNamespace(kind="mpi", name="MPI")


def said(
    caplog: pytest.LogCaptureFixture, rank: int, hosts: tuple[int, ...], **environ: str
) -> list[str]:
    """Return what ``rank`` of the ranks on ``hosts`` says, with the level."""
    caplog.clear()
    with caplog.at_level("INFO", logger="horovod"):
        topology = place(rank, hosts, cores=[range(8)] * len(hosts))
        _warn_once(read_settings(environ), topology, WORLD, Session().quota())
    return [f"{each.levelname} {each.getMessage()}" for each in caplog.records]


def test_a_job_of_several_hosts_without_a_key_is_told_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    key = {secret.ENV: "k" * 32}
    lines = [line for line in said(caplog, 0, (0, 0, 1, 1)) if secret.ENV in line]
    assert len(lines) == 1 and lines[0].startswith("INFO ") and "MPI has carried unenc" in lines[0]
    for rank, hosts, environ in ((1, (0, 0, 1, 1), {}), (0, (0, 0), {}), (0, (0, 0, 1, 1), key)):
        assert not any(secret.ENV in line for line in said(caplog, rank, hosts, **environ))


@pytest.mark.parametrize(
    ("cpu_max", "words"),
    [("100000 100000", "2 ranks of this host are 8 threads on 1 cores"), ("max 100000", "")],
)
def test_threads_are_set_against_what_a_container_may_use(
    cpu_max: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With as many cores as there are threads."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/job\n")
    (tmp_path / "sys/fs/cgroup/job").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/job/cpu.max").write_text(cpu_max)
    monkeypatch.setattr(priority, "ROOT", tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    lines = [line for line in said(caplog, 0, (0, 0)) if "OMP_NUM_THREADS" in line]
    assert [words in line for line in lines] == [True] * bool(words)
