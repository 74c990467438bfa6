"""What the activities of a timeline are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autotune.timeline.phases import Phase, activity_phase, backend_of

SOURCE = Path(__file__).resolve().parents[4] / "csrc/common/activity.cc"
ACTIVITIES = re.findall(r'"([A-Z]+)_([A-Z]+)"', SOURCE.read_text())
"""Backend and operation of all that the engine writes while data travel."""


@pytest.mark.parametrize(("backend", "operation"), ACTIVITIES)
def test_whatever_moves_data_is_a_transfer_of_its_backend(backend: str, operation: str) -> None:
    name = f"{backend}_{operation}"
    assert activity_phase(name) is Phase.TRANSFER
    assert backend_of(name) == backend


def test_the_engine_has_five_backends() -> None:
    assert {backend for backend, _ in ACTIVITIES} == {"SELF", "SHM", "MPI", "TCP", "NCCL"}
