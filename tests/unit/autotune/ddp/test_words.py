"""What is tuned by the user's word only: who names it, and what kind of setting that makes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.cli.formats import render
from autotune.ddp import meeting
from autotune.ddp.entry import is_wanted
from autotune.ddp.meeting import Arrival
from autotune.ddp.settings import kind_for, read_settings, replayed
from autotune.errors import AutotuneError
from autotune.result import Result
from autotune.tables import SETTINGS
from autotune.tables.ddp import DdpParams
from autotune.tables.further import FURTHER, extended, words_of
from autotune.tables.nccl import DdpNcclParams, without_nccl

ON = {"HOROVOD_AUTOTUNE": "1"}
EXPLORE = "HOROVOD_AUTOTUNE_EXPLORE"
HERE = Arrival(host="a", cores=[0], baseline={}, fixed={})


def test_without_a_word_nothing_of_it_is_explored() -> None:
    settings = read_settings(ON)
    assert settings.explored == () and settings.fixed == {}
    assert kind_for(None, is_explored=False) is DdpParams
    assert kind_for(None, is_explored=True) is DdpNcclParams


def test_what_is_fixed_is_not_explored() -> None:
    settings = read_settings({**ON, EXPLORE: "bf16,static_graph", "AUTOTUNE_DDP_STATIC_GRAPH": "0"})
    assert settings.explored == ("bf16",) and settings.fixed == {"static_graph": False}


@pytest.mark.parametrize("row", FURTHER.values(), ids=FURTHER)
def test_a_variable_that_fixes_one_is_a_job_for_the_adapter(row) -> None:
    assert is_wanted({row.env: "1"})
    assert read_settings({row.env: "1"}).fixed == {row.name: True}


@pytest.mark.parametrize(
    "environ",
    [
        {"AUTOTUNE_FP16_GRADIENTS": "1", "AUTOTUNE_BF16_GRADIENTS": "1"},
        {**ON, EXPLORE: "bf16", "AUTOTUNE_FP16_GRADIENTS": "1"},
    ],
)
def test_two_halves_are_an_error(environ: dict[str, str]) -> None:
    with pytest.raises(AutotuneError, match="AUTOTUNE_FP16_GRADIENTS and AUTOTUNE_BF16_GRADIENTS"):
        read_settings(environ)
    assert read_settings({**environ, "AUTOTUNE_FP16_GRADIENTS": "0"})


def test_the_kind_has_what_is_explored_and_what_is_in_force_at_the_start() -> None:
    bf16 = extended(DdpParams, ["bf16"])
    assert kind_for(None, is_explored=False, explored=["bf16"]) is bf16
    assert kind_for({"bf16_gradients": True}, is_explored=False) is bf16
    assert kind_for({"bf16_gradients": False}, is_explored=False) is DdpParams
    both = kind_for({"static_graph": True}, is_explored=True, explored=["fp16"])
    assert both.table.name == "ddp+nccl+fp16+static_graph" and issubclass(both, DdpNcclParams)


@pytest.mark.parametrize("base", [DdpParams, DdpNcclParams])
def test_buckets_are_made_by_these_and_never_by_what_is_nccls(base: type[DdpParams]) -> None:
    kind = extended(base, ["static_graph", "bf16"])
    plain = without_nccl(kind)
    assert plain is extended(DdpParams, ["bf16", "static_graph"])
    assert words_of(plain.table) == ("bf16", "static_graph")
    if base is DdpNcclParams:
        params = kind.from_dict({"nccl_channels": 4, "bf16_gradients": True})
        assert params.buckets == plain.from_dict({"bf16_gradients": True})


def test_a_log_of_any_of_these_tables_is_replayed_with_what_it_has_in_force(tmp_path: Path) -> None:
    path = tmp_path / "saved.json"
    for name, kind in SETTINGS.items():
        if not issubclass(kind, DdpParams):
            continue
        switches = {row.name: True for row in kind.table.parameters if row.type is bool}
        path.write_text(render(Result(params=kind.from_dict(switches)), "json"))
        environ = {"HOROVOD_AUTOTUNE_REPLAY": str(path), **ON, EXPLORE: "fp16"}
        settings = read_settings(environ)
        start = replayed(settings)
        assert start is not None and not settings.is_on
        start_kind = kind_for(start, is_explored=False)
        assert start_kind.table.name == name.replace("+nccl", "")  # its NCCL is the default


def test_a_log_and_a_variable_that_name_two_halves_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "saved.json"
    kind = extended(DdpParams, ["bf16"])
    path.write_text(render(Result(params=kind.from_dict({"bf16_gradients": True})), "json"))
    environ = {"HOROVOD_AUTOTUNE_REPLAY": str(path), "AUTOTUNE_FP16_GRADIENTS": "1"}
    with pytest.raises(AutotuneError, match="set one of them to 0"):
        replayed(read_settings(environ))
    assert replayed(read_settings({**environ, "AUTOTUNE_BF16_GRADIENTS": "0"}))


def test_what_one_rank_cannot_do_is_refused_by_all() -> None:
    other = replace(HERE, refused={"bf16": "gloo cannot", "fp16": "no"})
    assert meeting.refusals([HERE, HERE]) == {}
    assert meeting.refusals([HERE, other]) == {
        "bf16": "gloo cannot (rank 1)",
        "fp16": "no (rank 1)",
    }
    assert meeting.refusals([other, replace(other, refused={"bf16": "x"})])["bf16"] == "gloo cannot"
