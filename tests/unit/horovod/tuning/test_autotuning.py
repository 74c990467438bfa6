"""What the runtime tells the tuner's service, and who ends a training step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("horovod._engine")

from autotune.service import protocol
from autotune.service.step_source import StepSource
from autotune.tuning.changes import Done
from horovod.common.world import Topology
from horovod.tuning.job_description import inert_parameters, make_hello, nothing_to_tune
from horovod.tuning.session import Session
from horovod.tuning.settings import read_settings


def topology(local: int = 2, hosts: int = 1) -> Topology:
    return Topology(
        rank=0,
        size=local * hosts,
        local_rank=0,
        local_size=local,
        cross_rank=0,
        cross_size=hosts,
        homogeneous=True,
        hosts=tuple(rank // local for rank in range(local * hosts)),
    )


ALL = {
    "HOROVOD_FUSION_THRESHOLD": "1",
    "HOROVOD_CYCLE_TIME": "1",
    "HOROVOD_CACHE_CAPACITY": "1",
    "HOROVOD_HIERARCHICAL_ALLREDUCE": "1",
    "HOROVOD_HIERARCHICAL_ALLGATHER": "1",
}


def test_hierarchical_parameters_are_inert_on_one_host() -> None:
    inert = inert_parameters(topology())
    assert inert["hierarchical_allreduce"] == "all ranks are on one host"
    assert set(inert) == {"hierarchical_allreduce", "hierarchical_allgather"}
    assert inert_parameters(topology(1, 2))["hierarchical_allgather"] == "one rank per host"


def test_one_rank_or_nothing_free_is_nothing_to_tune() -> None:
    inert = inert_parameters(topology())
    assert nothing_to_tune(2, {}, inert) is None
    assert "1 rank" in (nothing_to_tune(1, {}, inert) or "")
    fixed = read_settings(ALL).fixed
    assert "HOROVOD_CYCLE_TIME" in (nothing_to_tune(2, fixed, {}) or "")
    without = {name: fixed[name] for name in fixed if not name.startswith("hierarchical")}
    assert "one host" in (nothing_to_tune(2, without, inert) or "")
    assert nothing_to_tune(2, without, {}) is None
    del without["cache_capacity"]
    assert nothing_to_tune(2, without, inert) is None


def test_hello_carries_settings_and_what_is_fixed() -> None:
    environ = {
        "HOROVOD_AUTOTUNE_LOG": "log.csv",
        "HOROVOD_AUTOTUNE_SEED": "4",
        "HOROVOD_AUTOTUNE_PRIOR": "0",
        "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": "0.5",
        "HOROVOD_HIERARCHICAL_ALLREDUCE": "0",
    }
    hello = make_hello(read_settings(environ), topology(), inert_parameters(topology()), "Open MPI")
    assert (hello.csv_path, hello.db_path) == ("log.csv", None)
    assert (hello.settings.seed, hello.settings.noise, hello.settings.max_samples) == (4, 0.5, 20)
    assert not hello.settings.prior
    assert hello.fixed == {"hierarchical_allreduce": False}
    assert list(hello.inert) == ["hierarchical_allgather"]
    assert hello.versions["mpi"] == "Open MPI"


def test_the_first_optimizer_ends_the_steps() -> None:
    steps = StepSource()
    assert not steps.exists
    steps.register(0, None)
    steps.register(1, None)
    assert [steps.ends_step(number) for number in (1, 0, 1, 0)] == [False, True, False, True]


def test_a_wrapper_of_the_same_parameters_takes_over_at_once() -> None:
    steps = StepSource()
    steps.register(0, None)
    steps.register(1, 0)
    assert not steps.ends_step(0)
    assert steps.ends_step(1)


def test_an_optimizer_that_is_no_longer_used_loses_its_role() -> None:
    steps = StepSource()
    steps.register(0, None)
    steps.register(1, None)
    ended = [steps.ends_step(1) for _ in range(StepSource.HAND_OVER + 2)]
    assert ended == [False] * StepSource.HAND_OVER + [True, True]


@pytest.mark.parametrize(("certified", "level"), [(True, "INFO"), (False, "WARNING")])
def test_replayed_settings_that_give_way_are_told_once_as_a_warning(
    monkeypatch, caplog, certified, level
) -> None:
    monkeypatch.setattr(Session, "_launch", lambda session, hello, start, cores: None)
    session = Session()
    environ = {"HOROVOD_AUTOTUNE_REPLAY": "log.csv", "HOROVOD_AUTOTUNE_REPLAY_CHECK": "1"}
    session._check(read_settings(environ), topology(), "Open MPI")
    with caplog.at_level("INFO", logger="horovod.autotune"):
        session._take(Done(epoch=1, params={}, certified=certified, text="the verdict"))
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [(level, "the verdict")]


def test_a_default_that_stays_after_tuning_is_no_warning(caplog) -> None:
    with caplog.at_level("INFO", logger="horovod.autotune"):
        Session()._take(Done(epoch=1, params={}, certified=False, text="the default stays"))
    assert [r.levelname for r in caplog.records] == ["INFO"]


def test_the_tuner_hears_why_the_engine_says_that_a_setting_does_not_suit_the_job() -> None:
    reason = "no GPU memory for a fusion buffer of 512 MiB, 64 MiB are used"
    sent: list[protocol.Message] = []
    session: Any = Session()
    session._service = SimpleNamespace(
        send=lambda line, droppable=False: sent.append(protocol.decode(line)), flush=lambda: None
    )
    session._engine = SimpleNamespace(
        drain_steps=lambda: ([], []),
        drain_checks=lambda: [(3, "t", False, -1.0, reason), (3, "u", False, 0.5, "")],
    )
    session._send_steps()
    checks = [each for each in sent if isinstance(each, protocol.ResultCheck)]
    assert [(each.epoch, each.name, each.ok, each.reason) for each in checks] == [
        (3, "t", False, reason),
        (3, "u", False, ""),
    ]
