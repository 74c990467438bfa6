"""A parameter that the first step shows not to be for the job is not explored, and said once."""

from __future__ import annotations

from autotune.storage.contract import Fresh
from autotune.tables.ddp import DdpParams
from autotune.tables.further import extended
from autotune.tuning.changes import Line
from autotune.tuning.steps.records import TunerSettings
from autotune.tuning.tuner import Tuner

KIND = extended(DdpParams, ["bf16"])
OPERATIONS = [("allreduce", 2**20)] * 8


def make_tuner(**more: object) -> Tuner:
    tuner = Tuner(settings=TunerSettings(), seed=1, size=2, baseline=KIND(), **more)
    tuner.open()
    return tuner


def lines(events: list) -> list[str]:
    return [event.text for event in events if isinstance(event, Line)]


def test_it_is_not_explored_and_the_others_are() -> None:
    tuner = make_tuner()
    assert "bf16_gradients" in tuner._space.names
    (line,) = lines(tuner.rule_out({"bf16_gradients": "a hook is there"}))
    assert line == "autotune: bf16_gradients is not explored: a hook is there"
    tuner.begin(OPERATIONS, Fresh())
    assert "bf16_gradients" not in tuner._space.names
    assert "bucket_cap_bytes" in tuner._space.names


def test_what_is_fixed_or_was_ruled_out_before_is_not_said_again() -> None:
    tuner = make_tuner(fixed={"bf16_gradients": True})
    assert lines(tuner.rule_out({"bf16_gradients": "a hook is there"})) == []
    tuner = make_tuner()
    tuner.rule_out({"bf16_gradients": "a hook is there"})
    assert lines(tuner.rule_out({"bf16_gradients": "another"})) == []
