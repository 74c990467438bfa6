"""What rank 0 knows of the tuning from what the service says."""

from __future__ import annotations

from autotune.ddp.session import Session
from autotune.service.protocol import Ready
from autotune.tables.ddp import DdpParams
from autotune.tuning.changes import Apply, Done

PARAMS = DdpParams().as_dict()


def test_a_job_is_idle_while_the_result_stays_in_force_and_no_longer() -> None:
    session = Session()
    session._take(Ready(lines=()))
    session._take(Apply(epoch=1, params=PARAMS))
    assert not session.is_idle
    session._take(Done(epoch=2, params=PARAMS, certified=True, text="done"))
    assert session.is_idle
    session._take(Apply(epoch=3, params=PARAMS))
    assert not session.is_idle
    session._take(Done(epoch=4, params=PARAMS, certified=True, text="done"))
    assert session.is_idle
