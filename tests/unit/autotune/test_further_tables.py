"""What is explored by the user's word only has tables, columns and a variable of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.errors import InvalidSettingError
from autotune.service.variables import read_variables
from autotune.storage import open_logs
from autotune.storage.contract import RunInfo
from autotune.storage.reader import read_log
from autotune.tables import SETTINGS, settings_of
from autotune.tables.ddp import DDP, DdpParams
from autotune.tables.further import COMPRESSION, extended, words_named
from autotune.tables.nccl import DdpNcclParams
from autotune.trial import CommParams, Fingerprint, RunState, Setting, Trial

EXPLORE = "HOROVOD_AUTOTUNE_EXPLORE"


def test_every_choice_of_words_has_a_table_and_its_columns_follow_all_others() -> None:
    assert len(SETTINGS) == 4 + 2 + 2 + 5 + 5
    for base in (CommParams, DdpParams, DdpNcclParams):
        kind = extended(base, ["bf16"])
        assert settings_of(f"{base.table.name}+bf16") is kind and issubclass(kind, base)
        assert kind.table.columns == (*base.table.columns, "bf16_gradients")
        assert kind().as_dict() == {**base().as_dict(), "bf16_gradients": False}
    both = extended(DdpNcclParams, ["static_graph", "fp16"])
    assert both.table.name == "ddp+nccl+fp16+static_graph"
    assert both.table.columns[-2:] == ("fp16_gradients", "static_graph")


def test_two_halves_do_not_stand_in_one_table() -> None:
    assert not [name for name in SETTINGS if "fp16" in name and "bf16" in name]
    assert not [name for name in SETTINGS if "horovod" in name and "static_graph" in name]


@pytest.mark.parametrize("base", [CommParams, DdpParams, DdpNcclParams])
def test_a_log_of_them_comes_back_with_and_without_its_database(
    base: type[Setting], tmp_path: Path
) -> None:
    kind = extended(base, ["bf16"])
    path = str(tmp_path / "log.csv")
    fingerprint = Fingerprint(
        tensors=(("allreduce", 8),),
        size=2,
        local_size=2,
        cross_size=1,
        versions={},
        fixed={},
        table=kind.table.name,
    )
    logs = open_logs(path, None, host="node1", pid=1, table=kind.table)
    logs.start(RunInfo(fingerprint=fingerprint, host="node1", pid=1, seed=1))
    settings = [kind(), kind.from_dict({"bf16_gradients": True})]
    trials = [Trial(trial_id=n, params=one, score=10.0 + n) for n, one in enumerate(settings)]
    for trial in trials:
        logs.add_trial(trial)
    logs.finish_run(RunState.DONE, trials[-1])
    assert logs.troubles == []
    logs.close()
    database = Path(path.replace(".csv", ".db"))
    for name in (path, str(database)):
        assert [trial.params for trial in read_log(name).trials] == settings
    database.unlink()
    assert read_log(path).answer().params == settings[-1]
    header = Path(path).read_text().splitlines()[0]
    assert header.endswith(",bf16_gradients")


@pytest.mark.parametrize(
    ("text", "words"),
    [("", ()), ("fp16", ("fp16",)), (" static_graph, bf16 ", ("bf16", "static_graph"))],
)
def test_the_users_words_are_read(text: str, words: tuple[str, ...]) -> None:
    assert read_variables({EXPLORE: text})[EXPLORE] == words


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("fp32", "expected one or more of fp16, bf16, static_graph, got 'fp32'"),
        ("fp16,bf16", "expected one of fp16 and bf16, got both"),
        ("fp16,", "got ''"),
    ],
)
def test_other_words_are_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidSettingError, match=f"{EXPLORE}: .*{why}"):
        read_variables({EXPLORE: text})


def test_what_a_setting_puts_in_force_is_named() -> None:
    assert words_named({"bf16_gradients": True, "static_graph": 0}) == ("bf16",)
    assert words_named(DdpParams().as_dict()) == ()
    assert not set(DDP.by_name) & {row.name for row in COMPRESSION.values()}
