from __future__ import annotations

from autotune.trial import CommParams
from autotune.tuning.inforce import InForce

DEFAULT, GOOD, ODD = (CommParams(cycle_time_ms=ms) for ms in (1.0, 2.0, 3.0))


def test_changes_are_numbered_and_remembered():
    in_force = InForce(DEFAULT)
    change = in_force.change(GOOD, known=None)
    assert change is not None and change.epoch == 1 and change.incumbent is None
    assert (in_force.of(0), in_force.of(1), in_force.of(-1)) == (DEFAULT, GOOD, None)


def test_what_is_in_force_needs_no_change():
    assert InForce(DEFAULT).change(DEFAULT, known=DEFAULT) is None


def test_a_limited_change_reserves_the_next_number_for_going_back():
    in_force = InForce(DEFAULT)
    change = in_force.change(ODD, known=GOOD, limit_us=5.0)
    assert change is not None and change.limit_us == 5.0
    assert in_force.of(change.epoch + 1) == GOOD
    later = in_force.change(DEFAULT, known=GOOD)
    assert later is not None and later.epoch == change.epoch + 2


def test_going_back_uses_the_number_that_the_runtime_uses():
    in_force = InForce(DEFAULT)
    change = in_force.change(ODD, known=GOOD, limit_us=5.0)
    back = in_force.fall_back()
    assert back is not None and change is not None and back.epoch == change.epoch + 1
    assert back.params == GOOD.as_dict() and in_force.params == GOOD
    assert in_force.fall_back() is None


def test_a_setting_that_stays_loses_its_limit():
    in_force = InForce(DEFAULT)
    in_force.change(ODD, known=DEFAULT, limit_us=5.0)
    again = in_force.change(ODD, known=ODD)
    assert again is not None and again.params == ODD.as_dict() and again.limit_us is None


def test_without_a_known_setting_there_is_no_limit():
    change = InForce(DEFAULT).change(ODD, known=None, limit_us=5.0)
    assert change is not None and change.limit_us is None
