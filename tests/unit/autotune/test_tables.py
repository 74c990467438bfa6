"""Runs of another table: their logs, answers and formats are of that table, and only of it."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.cli.formats import FORMATS, formats_of, render
from autotune.cli.main import main
from autotune.errors import InvalidSettingError
from autotune.result import Result, environment, read_result
from autotune.service import protocol
from autotune.space import HOROVOD, MIB
from autotune.storage import open_logs
from autotune.storage.contract import Resume, RunInfo
from autotune.storage.memory import compare
from autotune.storage.reader import read_log
from autotune.tables import SETTINGS, settings_of
from autotune.tables.ddp import DDP, DdpParams
from autotune.tables.further import COMPRESSION, FURTHER, extended
from autotune.trial import CommParams, Fingerprint, RunState, Trial
from autotune.tuning.messages import no_sample_text, not_recognised_text
from autotune.tuning.steps.identify import Identifier

BEST = DdpParams(bucket_cap_bytes=2 * MIB, gradient_as_bucket_view=True)
TRIALS = (
    Trial(trial_id=0, params=DdpParams(), score=10.0),
    Trial(trial_id=1, params=BEST, score=15.0),
)


def fingerprint(**more: object) -> Fingerprint:
    known = {"size": 2, "local_size": 2, "cross_size": 1, "versions": {}, "fixed": {}}
    return Fingerprint(tensors=(("allreduce", 8),), **(known | more))


def run_info(**more: object) -> RunInfo:
    return RunInfo(fingerprint=fingerprint(table="ddp", **more), host="node1", pid=1, seed=1)


@pytest.fixture
def log(tmp_path: Path) -> str:
    """The path of a finished log of a DDP run."""
    path = str(tmp_path / "log.csv")
    logs = open_logs(path, None, host="node1", pid=1, table=DDP)
    logs.start(run_info())
    for trial in TRIALS:
        logs.add_trial(trial)
    logs.finish_run(RunState.DONE, TRIALS[1])
    assert logs.troubles == []
    logs.close()
    return path


def test_its_csv_has_the_columns_of_its_table_and_comes_back(log: str) -> None:
    lines = Path(log).read_text().splitlines()
    assert lines[0] == "bucket_cap_mb,first_bucket_mb,gradient_as_bucket_view,score"
    assert lines[1:] == ["0,0,0,10", "2,0,1,15", "2,0,1,15"]
    for view in (read_log(log), read_log(log.replace(".csv", ".db"))):
        assert [trial.params for trial in view.trials] == [DdpParams(), BEST]
        assert view.finished and view.answer().params == BEST
    Path(log.replace(".csv", ".db")).unlink()
    assert read_log(log).answer().params == BEST


def test_the_same_job_goes_on_and_another_baseline_does_not(tmp_path: Path) -> None:
    path = str(tmp_path / "log.csv")
    for baseline, expected in (({}, False), ({}, True), ({"bucket_cap_bytes": MIB}, False)):
        logs = open_logs(path, None, host="node1", pid=1, table=DDP)
        start = logs.start(run_info(baseline=baseline))
        assert isinstance(start, Resume) is expected
        if not expected:
            logs.add_trial(TRIALS[0])
        logs.close()


def test_runs_of_two_tables_share_a_database_and_do_not_learn_from_each_other(
    tmp_path: Path,
) -> None:
    database = str(tmp_path / "all.db")
    for kind in (CommParams, DdpParams):
        csv = str(tmp_path / f"{kind.table.name}.csv")
        logs = open_logs(csv, database, host="node1", pid=1, table=kind.table)
        run = RunInfo(fingerprint=fingerprint(table=kind.table.name), host="node1", pid=1, seed=1)
        assert logs.start(run).memory == ()
        logs.add_trial(Trial(trial_id=0, params=kind(), score=1.0))
        assert logs.troubles == []
        logs.close()
        assert read_log(csv).trials[0].params == kind()
    here, there = (fingerprint(table=name).as_dict() for name in ("horovod", "ddp"))
    assert compare(here, here)[0] == 1 and compare(here, there)[0] == 0


def test_a_job_of_the_first_table_is_the_one_that_it_was_before_there_were_others() -> None:
    assert "table" not in fingerprint().as_dict() and "baseline" not in fingerprint().as_dict()


def test_the_commands_answer_in_its_words(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["best", log]) == 0
    text = capsys.readouterr().out
    assert "2097152 bytes (2 MiB)" in text and "fusion" not in text
    assert main(["show", log]) == 0
    assert "gradient_as_bucket" in capsys.readouterr().out
    for name in set(FORMATS) - set(formats_of(DDP)):
        assert main(["best", log, "--format", name]) == 1
        answer = capsys.readouterr()
        assert answer.out == "" and "autotune replay" in answer.err and log in answer.err
    with pytest.raises(InvalidSettingError, match="expected one of"):
        render(Result(params=CommParams()), "ddp")


@pytest.mark.parametrize(
    "params",
    [DdpParams(), BEST, DdpParams(bucket_cap_bytes=128 * 1024, first_bucket_bytes=MIB)],
)
def test_the_constructor_call_says_exactly_the_setting(params: DdpParams) -> None:
    text = render(Result(params=params), "ddp").partition("# Trainer")[0]
    call = ast.parse(text).body[0].value
    given = {one.arg: ast.literal_eval(one.value) for one in call.keywords}
    cap = given["bucket_cap_mb"]
    assert (0 if cap is None else cap * MIB) == params.bucket_cap_bytes
    assert given["gradient_as_bucket_view"] == params.gradient_as_bucket_view
    assert ("first bucket" in text) == bool(params.first_bucket_bytes)


@pytest.mark.parametrize("words", [["static_graph"], ["fp16"], ["bf16", "static_graph"]])
def test_what_goes_with_the_constructor_call_is_said_with_it(words: list[str]) -> None:
    kind = extended(DdpParams, words)
    named = {FURTHER[word].name: True for word in words}
    params = kind.from_dict({**BEST.as_dict(), **named})
    text = render(Result(params=params), "ddp").partition("# Trainer")[0]
    body = ast.parse(text).body
    hooks = [word for word in words if word in COMPRESSION]
    assert len(body) == 1 + 2 * len(hooks)
    call = body[len(hooks)].value
    given = {one.arg: ast.literal_eval(one.value) for one in call.keywords}
    assert given.get("static_graph", False) is ("static_graph" in words)
    for hook in hooks:
        assert ast.unparse(body[0]).endswith("ddp_comm_hooks import default_hooks")
        last = f"model.register_comm_hook(None, default_hooks.{hook}_compress_hook)"
        assert ast.unparse(body[-1]) == last and body[1].targets[0].id == "model"
    plain = render(Result(params=kind.from_dict(BEST.as_dict())), "ddp")
    assert plain == render(Result(params=BEST), "ddp")


@pytest.mark.parametrize("kind", [DdpParams, extended(DdpParams, ["bf16", "static_graph"])])
def test_json_and_environment_come_back(kind: type[DdpParams], tmp_path: Path) -> None:
    switches = {row.name: True for row in kind.table.parameters if row.type is bool}
    best = kind.from_dict({**BEST.as_dict(), **switches})
    saved = tmp_path / "saved.json"
    saved.write_text(render(Result(params=best), "json"))
    assert read_result(str(saved)).params == best
    rows = {row.env: row for row in kind.table.parameters}
    values = {rows[env].name: rows[env].parse(text) for env, text in environment(best).items()}
    assert kind.from_dict(values) == best


def test_the_protocol_carries_settings_of_the_table_that_was_agreed_on() -> None:
    apply = protocol.Apply(epoch=1, params=BEST.as_dict())
    assert protocol.decode(protocol.encode(apply), DdpParams) == apply
    with pytest.raises(Exception, match="unknown parameter"):
        protocol.decode(protocol.encode(apply))
    hello = protocol.Hello(
        size=2, local_size=2, cross_size=1, host="a", pid=1, table="ddp", baseline=BEST.as_dict()
    )
    assert protocol.decode(protocol.encode(hello)) == hello and hello.start == BEST


def test_names_mean_the_same_in_every_table_and_an_unknown_table_is_named() -> None:
    rows = {id(row): row for kind in SETTINGS.values() for row in kind.table.parameters}
    for attribute in ("name", "env", "column"):
        assert len({getattr(row, attribute) for row in rows.values()}) == len(rows)
    assert settings_of("horovod").table is HOROVOD
    with pytest.raises(InvalidSettingError, match="'nccl'"):
        settings_of("nccl")


def test_why_a_job_is_not_tuned_is_said_in_words_of_its_own_runtime() -> None:
    seen = Identifier().observed
    of_ddp = not_recognised_text(seen, DDP)
    assert "optimizer that owns parameters of a DistributedDataParallel" in of_ddp
    assert "hvd.autotune.step()" in not_recognised_text(seen, HOROVOD)
    mixed = replace(seen, steps=40, recent=40, kinds=20, largest=2)
    texts = (of_ddp, not_recognised_text(mixed, DDP))
    assert not any("hvd" in text for text in texts)
    assert "hvd.autotune.pause()" in not_recognised_text(mixed, HOROVOD)
    assert "DistributedDataParallel" in no_sample_text(seen, DDP, more=None, is_known=False)
