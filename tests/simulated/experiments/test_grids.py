"""Measured grids: written and read without loss; the cost model predicts them."""

from __future__ import annotations

from pathlib import Path

import fit
import grids
import numpy as np
import pytest

from autotune.trial import CommParams

RESULT = {
    "hosts": 2,
    "local_size": 2,
    "rate_mbit": 200,
    "block": 2,
    "sizes": [4000, 8000],
    "ready_us": [1000.0, 2000.0],
    "compute_us": 2000.0,
}


def test_what_was_measured_is_read_back(tmp_path: Path) -> None:
    params = CommParams(cycle_time_ms=0.2, hierarchical_allreduce=True)
    for name in ("a", "b"):
        cells = [{**params.as_dict(), "step_ms": [1.25, 3.5]}]
        grids.write(name, {**RESULT, "cells": cells}, tmp_path)
    first, second = grids.read(tmp_path)
    assert (first.name, second.name) == ("a", "b")
    assert dict(first.cells) == {params: (1.25, 3.5)}
    assert first.workload.sizes == (4000, 8000)
    assert first.about["rate_mbit"] == 200


@pytest.mark.parametrize("grid", grids.read(), ids=lambda grid: grid.name)
def test_the_model_predicts_settings_that_were_held_out(grid: grids.Grid) -> None:
    errors = np.abs(list(fit.fit(grid).errors.values()))
    assert len(errors) >= 10
    assert np.median(errors) <= fit.WITHIN
