"""Gains that people are told, and the log ratios behind them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.tuning.exploring.gains import gain_of, log_ratio_of

MEANS = st.floats(min_value=-3.0, max_value=3.0)
STDS = st.floats(min_value=1e-3, max_value=1.0)


@given(mean=MEANS, std=STDS)
def test_what_is_told_keeps_what_was_read(mean: float, std: float) -> None:
    ratio = log_ratio_of(gain_of(mean, std))
    assert ratio.mean == pytest.approx(mean, abs=1e-6)
    assert math.sqrt(ratio.variance) == pytest.approx(std, rel=1e-6)


@given(mean=MEANS, std=STDS)
def test_what_is_told_is_never_more_than_what_was_read(mean: float, std: float) -> None:
    told = math.log1p(gain_of(mean, std).estimate)
    assert min(mean, 0.0) - 1e-9 <= told <= max(mean, 0.0) + 1e-9
    assert abs(told) <= abs(mean) + 1e-9


def test_a_gain_within_its_own_noise_is_told_as_none() -> None:
    assert gain_of(0.05, 0.06).estimate == 0.0
    assert gain_of(-0.05, 0.06).estimate == 0.0


def test_a_gain_beyond_noise_is_told_as_it_is() -> None:
    assert gain_of(0.5, 0.01).estimate == pytest.approx(math.expm1(0.5), rel=1e-3)
