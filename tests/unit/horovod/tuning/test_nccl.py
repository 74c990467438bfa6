"""A runtime's job has NCCL load the tuner only where NCCL is to be told something."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.nccl import offer
from horovod.common.world import Topology
from horovod.tuning import nccl
from horovod.tuning.settings import read_settings

TUNES = {"HOROVOD_AUTOTUNE": "1"}


def loaded(environ: dict[str, str], link: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(offer, "library_path", lambda: "/tuner.so")
    monkeypatch.setattr(nccl, "link_of", lambda environ, is_one_host: link)
    place = Topology(
        rank=0,
        size=2,
        local_rank=0,
        local_size=2,
        cross_rank=0,
        cross_size=1,
        homogeneous=True,
        hosts=(0, 0),
    )
    seen: dict[str, str] = {}
    assert nccl.offer_if_wanted(read_settings(environ), place, seen) == ""
    return offer.VARIABLE in seen


@pytest.mark.parametrize(
    ("link", "is_loaded"),
    [("none", False), ("nvlink", False), ("pci", True), ("sockets", True), ("network", True)],
)
def test_a_job_that_tunes_loads_it_where_its_choices_can_matter(
    link: str, is_loaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert loaded(TUNES, link, monkeypatch) == is_loaded
    assert not loaded({}, link, monkeypatch)


def test_settings_that_name_a_choice_load_it_over_any_link_of_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for environ in ({"AUTOTUNE_NCCL_CHANNELS": "4"}, {"HOROVOD_AUTOTUNE_REPLAY": str(tmp_path)}):
        assert loaded(environ, "nvlink", monkeypatch)
        assert not loaded(environ, "none", monkeypatch)
