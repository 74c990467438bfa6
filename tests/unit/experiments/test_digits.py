"""What the demo says of its timed jobs, and how it shows commands."""

from __future__ import annotations

import sys
from pathlib import Path

import act
import numpy as np
import pytest
from compare import Comparison, compare


def jobs(level_ms: float, seed: int, count: int = 4) -> list[np.ndarray]:
    """Return epoch medians of ``count`` jobs with 2 % of noise."""
    rng = np.random.default_rng(seed)
    return [level_ms * rng.normal(1, 0.02, 3) for _ in range(count)]


def compared(default_ms: float, tuned_ms: float, count: int = 4) -> Comparison:
    rng = np.random.default_rng(0)
    return compare(jobs(default_ms, 1, count), jobs(tuned_ms, 2, count), rng)


@pytest.mark.parametrize("ratio", [0.8, 1.0, 1.5])
def test_the_interval_holds_the_true_ratio(ratio: float) -> None:
    result = compared(30 * ratio, 30)
    assert result.low < ratio < result.high
    assert result.high - result.low < 0.1


@pytest.mark.parametrize(
    ("default_ms", "verdict"),
    [(45, "faster: a step takes 3"), (24, "slower: a step takes 2"), (30, "no difference")],
)
def test_the_verdict_is_what_the_interval_shows(default_ms: float, verdict: str) -> None:
    assert verdict in compared(default_ms, 30).verdict()


def test_two_pairs_say_nothing() -> None:
    assert "too few" in compared(60, 30, count=2).verdict()


def test_the_gain_is_stated_as_the_certificate_states_it() -> None:
    """Of 45 and 30 ms a step the certificate says: +50 % over the default."""
    (line,) = [line for line in compared(45, 30).lines() if line.startswith("gain")]
    assert 48 < float(line.split()[1]) < 52


def test_commands_are_shown_as_a_person_types_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words: act.Words = [act.BIN / "horovodrun", "-np", "2", sys.executable, tmp_path / "train.py"]
    assert act.shown([*words, "--seed", "1", Path("/etc/hosts")]) == (
        "horovodrun -np 2 python train.py --seed 1 /etc/hosts"
    )
