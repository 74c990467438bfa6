from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from autotune.trial import CommParams
from autotune.tuning.exploring.findings import Findings


@pytest.mark.parametrize(("deviations", "is_slower"), [(3.5, False), (4.5, True), (-4.5, False)])
def test_a_setting_is_abandoned_only_where_it_is_slower_beyond_doubt(deviations, is_slower):
    """Three standard deviations were too few: of 202 such settings 4 were in truth faster."""
    optimizer = SimpleNamespace(
        space=SimpleNamespace(default=CommParams()),
        posterior=lambda settings: (np.array([-0.02 * deviations]), np.array([0.02])),
    )
    findings = Findings(optimizer, warm_start=None)
    assert findings.is_slower(CommParams(cycle_time_ms=5.0)) is is_slower
