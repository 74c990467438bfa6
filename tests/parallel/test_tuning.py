"""Rank 0 and its service: what is told, what is applied, what a lost service costs."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import horovod.torch as hvd
from autotune.service import protocol
from horovod.tuning import session

FAKE = Path(__file__).with_name("fake_service.py")
Restart = Callable[[dict[str, str]], None]
Fake = Callable[..., Path]


@pytest.fixture
def fake(restart: Restart, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Fake:
    """Start the runtime with a service that behaves as named; return the file of what it hears."""

    def start(behaviour: str, **settings: str) -> Path:
        heard = tmp_path / "heard"
        monkeypatch.setattr(session, "SERVICE", (str(FAKE), behaviour, str(heard)))
        restart({"HOROVOD_AUTOTUNE": "1"} | settings)
        return heard

    return start


def read(path: Path, kind: type) -> list[Any]:
    messages = [protocol.decode(line) for line in path.read_bytes().splitlines()]
    return [message for message in messages if isinstance(message, kind)]


def train(until: Callable[[], bool], *, named: bool = True, explicit: bool = True) -> None:
    """Steps of three allreduces, until rank 0 says that it is enough."""
    deadline = time.monotonic() + 20
    enough = torch.zeros(1)
    while enough.item() == 0:
        for i in range(3):
            hvd.allreduce(torch.ones(1000 * (i + 1)), name=f"t{i}" if named else None)
        if explicit:
            hvd.autotune.step()
        enough[0] = float(hvd.rank() == 0 and until())
        hvd.broadcast_(enough, 0, name="enough" if named else None)
        assert time.monotonic() < deadline


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize("explicit", [True, False], ids=["explicit", "found"])
@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
def test_steps_and_settings_go_both_ways(
    named: bool, explicit: bool, fake: Fake, rank: int, size: int
) -> None:
    """T6: unnamed allreduces advance the tuner, too."""
    heard = fake("apply", HOROVOD_AUTOTUNE_SEED="5")
    train(lambda: hvd.autotune.status().epoch == 1, named=named, explicit=explicit)
    params = hvd.allgather_object(hvd.autotune.params())
    assert all(each == params[0] for each in params)
    assert params[0]["fusion_threshold_bytes"] == 123_456
    status = hvd.autotune.status()
    assert status.state == ("tuning" if rank == 0 else "off")
    hvd.shutdown()
    if rank == 0:
        (hello,) = read(heard, protocol.Hello)
        assert (hello.size, hello.settings.seed, hello.fixed) == (size, 5, {})
        assert set(hello.inert) == {"hierarchical_allreduce", "hierarchical_allgather"}
        records = [record for message in read(heard, protocol.Steps) for record in message.records]
        assert records
        known = {message.signature for message in read(heard, protocol.Signature)}
        times = Counter(record.signature for record in records)
        assert {signature for signature, count in times.items() if count > 1} <= known
        assert len(read(heard, protocol.Finish)) == 1
    hvd.init()


@pytest.mark.usefixtures("two_ranks")
def test_a_setting_under_which_a_step_waits_too_long_is_taken_back(fake: Fake) -> None:
    """By the runtime itself: this service never does."""
    fake("limit")
    train(lambda: hvd.autotune.status().epoch >= 2)
    assert hvd.autotune.params()["fusion_threshold_bytes"] == 65_536
    assert hvd.autotune.status().epoch == 2


@pytest.mark.usefixtures("two_ranks")
def test_a_result_of_every_setting_is_checked_and_told(fake: Fake, rank: int) -> None:
    heard = fake("apply")
    train(lambda: hvd.autotune.status().epoch == 1)
    for _ in range(20):
        hvd.allreduce(torch.ones(1000), name="t")
        hvd.autotune.step()
        time.sleep(0.01)
    hvd.shutdown()
    if rank == 0:
        checks = read(heard, protocol.ResultCheck)
        assert checks and all(check.ok for check in checks)
        assert 1 in {check.epoch for check in checks}
    hvd.init()


@pytest.mark.usefixtures("two_ranks")
def test_the_script_says_how_many_samples_a_step_has(fake: Fake, rank: int) -> None:
    heard = fake("apply")
    for _ in range(50):
        hvd.allreduce(torch.ones(1000), name="t")
        hvd.autotune.step(samples=32)
    for wrong in (0, -1, 10**30, 1.5, True):
        with pytest.raises(ValueError, match=f"samples: expected a whole number.*, got {wrong!r}"):
            hvd.autotune.step(samples=wrong)
    hvd.shutdown()
    if rank == 0:
        records = [one for message in read(heard, protocol.Steps) for one in message.records]
        assert sum(one.count for one in records) == 50
        assert all(one.samples == 32 * one.count for one in records)
    hvd.init()


@pytest.mark.usefixtures("two_ranks")
def test_done_stays_in_force_on_every_rank(fake: Fake, rank: int) -> None:
    fake("done")
    train(lambda: hvd.autotune.status().epoch == 2)
    assert hvd.autotune.params()["fusion_threshold_bytes"] == 65_536
    if rank == 0:
        assert hvd.autotune.status().state == "done"
        assert hvd.autotune.status().text == "best found"


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize("behaviour", ["die", "garbage"])
def test_training_goes_on_with_the_incumbent_when_the_service_is_lost(
    behaviour: str, fake: Fake, rank: int, caplog: pytest.LogCaptureFixture
) -> None:
    fake(behaviour)
    if behaviour == "garbage":
        train(lambda: hvd.autotune.status().state == "lost")
    else:
        train(lambda: hvd.autotune.status().epoch == 2)
        assert hvd.autotune.params()["fusion_threshold_bytes"] == 65_536
    if rank == 0:
        warnings = [r.message for r in caplog.records if r.levelno == logging.WARNING]
        assert len(warnings) == 1
        assert "training goes on" in warnings[0]


def refused(rank: int, restart: Callable[[], object], pattern: str) -> None:
    with pytest.raises(ValueError, match=pattern):
        restart()
    assert not hvd.is_initialized()


@pytest.mark.usefixtures("two_ranks")
def test_a_refusal_is_raised_on_every_rank(fake: Fake, rank: int) -> None:
    """T7."""
    refused(
        rank,
        lambda: fake("refuse", HOROVOD_AUTOTUNE_LOG="/no/such/log.csv"),
        r"/no/such/log\.csv: no such folder \(rank 0 of",
    )


@pytest.mark.usefixtures("two_ranks")
def test_a_service_that_cannot_start_costs_one_warning(
    fake: Fake, rank: int, caplog: pytest.LogCaptureFixture
) -> None:
    fake("crash")
    assert torch.equal(hvd.allreduce(torch.ones(2)), torch.ones(2))
    if rank == 0:
        assert hvd.autotune.status().state == "lost"
        warnings = [r.message for r in caplog.records if r.levelno == logging.WARNING]
        assert len(warnings) == 1
        assert "no such luck" in warnings[0]


def test_everything_fixed_is_nothing_to_tune(
    restart: Restart, rank: int, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    """T10."""
    caplog.set_level(logging.INFO, "horovod")
    restart(
        {
            "HOROVOD_AUTOTUNE": "1",
            "HOROVOD_FUSION_THRESHOLD": "1048576",
            "HOROVOD_CYCLE_TIME": "2.5",
            "HOROVOD_CACHE_CAPACITY": "64",
        }
    )
    if rank == 0:
        assert hvd.autotune.status().state == "nothing to tune"
        lines = [record.message for record in caplog.records]
        assert len(lines) == 1
        assert lines[0].startswith("nothing to tune: ")
        assert size == 1 or "HOROVOD_FUSION_THRESHOLD" in lines[0]
    params = hvd.autotune.params()
    assert (params["fusion_threshold_bytes"], params["cycle_time_ms"]) == (1_048_576, 2.5)
    assert params["cache_capacity"] == 64


@pytest.mark.usefixtures("two_ranks")
def test_a_step_costs_the_training_thread_next_to_nothing(fake: Fake, rank: int) -> None:
    """At most 20 us a step, message hand-over included (spread over the steps between)."""
    fake("apply")
    count, start = 20_000, time.perf_counter()
    for _ in range(count):
        hvd.autotune.step()
    seconds = time.perf_counter() - start
    assert seconds / count < 20e-6, f"{seconds / count * 1e6:.1f} us"


@pytest.mark.usefixtures("two_ranks")
def test_paused_steps_are_not_scored(fake: Fake, rank: int) -> None:
    heard = fake("apply")
    hvd.autotune.pause()
    train(lambda: os.path.exists(heard) and any(m.records for m in read(heard, protocol.Steps)))
    hvd.autotune.resume()
    hvd.shutdown()
    if rank == 0:
        records = [record for message in read(heard, protocol.Steps) for record in message.records]
        assert records[0].signature == 0
    hvd.init()


@pytest.mark.usefixtures("two_ranks")
def test_restarts_with_tuning_on(fake: Fake, size: int) -> None:
    """T13: 100 steps, shutdown, init, 5 steps; twenty times."""
    for _ in range(20):
        for steps in (100, 5):
            fake("apply")
            for i in range(steps):
                total = hvd.allreduce(torch.full((1000,), float(i)), op=hvd.Sum, name="grad")
                assert torch.equal(total, torch.full((1000,), float(i * size)))
                hvd.autotune.step()
            hvd.barrier()
