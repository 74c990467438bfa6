"""``--check-build`` keeps Horovod's layout and says why something is missing."""

from __future__ import annotations

import pytest

import horovod
from horovod.runner import check_build
from horovod.runner.probe import EngineBuild


def test_layout_is_horovods(monkeypatch: pytest.MonkeyPatch) -> None:
    build = EngineBuild(library="/opt/mpi/lib/libmpi.so.40", version="Open MPI v5.0.11, package")
    monkeypatch.setattr(check_build, "engine_build", lambda: build)
    lines = check_build.report().splitlines()
    assert lines[0] == f"Horovod v{horovod.__version__}:"
    start = lines.index("Available Controllers:")
    assert lines[start - 1 : start + 4] == [
        "",
        "Available Controllers:",
        "    [X] MPI",
        "    [X] Gloo",
        "",
    ]
    assert lines[start + 4] == "Available Tensor Operations:"
    assert [line[8:] for line in lines[start + 5 : start + 10]] == [
        "NCCL",
        "DDL",
        "CCL",
        "MPI",
        "Gloo",
    ]
    assert any("Open MPI v5.0.11" in line for line in lines)


def test_an_engine_that_does_not_import_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_build, "engine_build", lambda: EngineBuild(error="no libmpi.so"))
    text = check_build.report()
    assert "    [ ] MPI" in text
    assert "no libmpi.so" in text


def test_every_missing_part_has_its_reason() -> None:
    lines = check_build.report().splitlines()
    missing = {line[8:] for line in lines if line.startswith("    [ ] ")}
    details = lines[lines.index("Details:") + 1 :]
    explained = {name for line in details for name in line.strip().split(": ")[0].split(", ")}
    assert missing - explained == set()


@pytest.mark.parametrize(
    ("build", "mark", "note"),
    [
        (EngineBuild(), " ", "no NVIDIA driver (libcuda.so.1) here"),
        (EngineBuild(cuda=13000), " ", "install a PyTorch with CUDA"),
        (
            EngineBuild(cuda=12040, nccl=22809, nccl_library="/nccl/libnccl.so.2"),
            "X",
            "version 2.28.9, /nccl/libnccl.so.2, driver for CUDA 12.4",
        ),
    ],
)
def test_what_gpus_need(
    build: EngineBuild, mark: str, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_build, "engine_build", lambda: build)
    text = check_build.report()
    assert f"    [{mark}] NCCL" in text
    assert note in text
