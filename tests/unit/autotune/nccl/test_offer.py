"""NCCL is told to load this package's tuner, and never instead of a user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.nccl import links, offer
from autotune.nccl.links import can_matter, link_of
from autotune.nccl.offer import VARIABLE, decided, library_path, offered
from autotune.nccl.plugin import Plugin

SLOW = {"NCCL_P2P_DISABLE": "1"}


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path = str(tmp_path / "tuner.so")
    monkeypatch.setattr(offer, "library_path", lambda: path)
    return path


def test_the_variable_names_the_library(library: str) -> None:
    environ: dict[str, str] = {}
    assert offered(environ) == ""
    assert offer.offer(environ) == "" and environ == {VARIABLE: library}
    assert offered(environ) == library
    assert offer.offer(environ) == ""


def test_a_users_own_is_left_alone(library: str) -> None:
    environ = {VARIABLE: "mine"}
    assert f"{VARIABLE}=mine" in offer.offer(environ)
    assert environ == {VARIABLE: "mine"} and offered(environ) == ""


def test_what_stands_in_the_way_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for path, why in (("", "not installed"), (f"/{'x' * 300}", "longer than NCCL reads")):
        monkeypatch.setattr(offer, "library_path", lambda path=path: path)
        environ: dict[str, str] = {}
        assert why in offer.offer(environ) and environ == {}


def test_what_nccls_variables_decide_is_not_explored() -> None:
    assert decided({"NCCL_ALGO": "Ring", "NCCL_PROTO": " "}) == {
        "nccl_algorithm": "NCCL_ALGO=Ring is set"
    }


def given(monkeypatch: pytest.MonkeyPatch, *, gpus: bool, nvlink: bool) -> None:
    def found(pattern: str, **more: Any) -> list[str]:
        return ["/proc/driver/nvidia/gpus/0"] if gpus else []

    monkeypatch.setattr(links.glob, "glob", found)
    monkeypatch.setattr(links, "has_nvlink", lambda: nvlink)


@pytest.mark.parametrize(
    ("environ", "one_host", "nvlink", "expected"),
    [
        ({}, True, True, "nvlink"),
        ({}, True, False, "pci"),
        (SLOW, True, True, "shared memory"),
        ({"NCCL_P2P_LEVEL": "LOC"}, True, True, "shared memory"),
        ({**SLOW, "NCCL_SHM_DISABLE": "1"}, True, True, "sockets"),
        ({"NCCL_P2P_DISABLE": "0"}, True, True, "nvlink"),
        ({}, False, True, "network"),
    ],
)
def test_the_link_is_that_of_the_slowest_pair(
    environ: dict[str, str],
    one_host: bool,
    nvlink: bool,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given(monkeypatch, gpus=True, nvlink=nvlink)
    assert link_of(environ, is_one_host=one_host) == expected
    assert can_matter(link_of(environ, is_one_host=one_host)) == (expected != "nvlink")
    given(monkeypatch, gpus=False, nvlink=False)
    assert link_of(environ, is_one_host=one_host) == "none"
    assert not can_matter("none")


@pytest.mark.skipif(not library_path(), reason="installed without C++")
def test_python_and_the_library_mean_the_same() -> None:
    plugin = Plugin(library_path())
    seen = plugin.seen()
    assert (seen.interface, seen.communicators, seen.operations, seen.chosen) == (0, 0, 0, 0)
    assert plugin.hold(2, 10) == 0
    assert plugin.release({"nccl_algorithm": 1, "nccl_channels": 8, "cycle_time_ms": 1.0})
    assert plugin.release(None)
