"""Makers of runs, trials and logs, as fixtures."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from autotune.storage import sqlite_log
from autotune.storage.contract import RunInfo
from autotune.trial import Certificate, CommParams, Fingerprint, Gain, Sample, Trial


def _run(size: int = 2, seed: int = 7) -> RunInfo:
    fingerprint = Fingerprint(
        tensors=(("allreduce", 4000), ("allreduce", 8)),
        size=size,
        local_size=size,
        cross_size=1,
        versions={"hvd-autotune": "0.29.0", "mpi": "5.0.11"},
        fixed={},
    )
    return RunInfo(fingerprint=fingerprint, host="node1", pid=4242, seed=seed, settings={"max": 20})


def _trial(trial_id: int, score: float = 100.0, **changes: object) -> Trial:
    params = CommParams() if trial_id == 0 else CommParams(fusion_threshold_bytes=trial_id * 4099)
    return Trial(trial_id=trial_id, params=params, score=score, **changes)  # type: ignore[arg-type]


def _sample(trial_id: int, epoch: int = 0) -> Sample:
    return Sample(
        trial_id=trial_id,
        epoch=epoch,
        steps=10,
        duration_us=1234.5,
        payload_bytes=40080,
        exposed_us=321.25,
        score=32.5,
    )


def _gain(percent: float) -> Gain:
    return Gain(estimate=percent / 100, low=percent / 100 - 0.09, high=percent / 100 + 0.09)


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process needs no sync, only a machine that loses power does."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(sqlite_log, "_SYNCHRONOUS", "OFF")


@pytest.fixture
def make_run() -> Callable[..., RunInfo]:
    return _run


@pytest.fixture
def make_trial() -> Callable[..., Trial]:
    return _trial


@pytest.fixture
def make_gain() -> Callable[[float], Gain]:
    return _gain


@pytest.fixture
def make_sample() -> Callable[..., Sample]:
    return _sample


@pytest.fixture
def certificate() -> Certificate:
    return Certificate(
        trial_id=1,
        pairs=9,
        gain=0.1,
        gain_low=0.03,
        gain_high=0.2,
        alpha=0.01,
        certified=True,
        reason="9 pairs",
    )
