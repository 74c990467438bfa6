"""States of plain objects: what is saved, restored and sent, and when a function is interrupted."""

from __future__ import annotations

import threading
from typing import Any

import pytest

pytest.importorskip("horovod._engine")

from horovod.common import rounds
from horovod.common.exceptions import HostsUpdatedInterrupt
from horovod.elastic.notifications import HostUpdateResult
from horovod.elastic.state import ObjectState

REMOVED, ADDED = HostUpdateResult.removed, HostUpdateResult.added


def state_of(**kwargs: Any) -> ObjectState:
    return ObjectState(lambda value: value, lambda: 0, **kwargs)


def ranks_of(*values: dict[str, Any]) -> list[ObjectState]:
    """Return the states of as many ranks; rank 0's ``sync`` has to come first."""
    sent: list[Any] = []

    def broadcast(value: Any) -> Any:
        sent.append(value)
        return sent[0]

    def make(rank: int) -> ObjectState:
        return ObjectState(broadcast, lambda: rank, **values[rank])

    return [make(rank) for rank in range(len(values))]


def test_attributes_are_restored_to_the_last_commit() -> None:
    state = state_of(batch=0, epoch=1)
    state.batch = 5
    state.commit()
    state.batch, state.epoch = 6, 7
    state.restore()
    assert (state.batch, state.epoch) == (5, 1)


def test_what_was_changed_in_place_is_restored_too_and_more_than_once() -> None:
    state = state_of(losses=[1.0], best={"epoch": [0]})
    for _ in range(2):
        state.losses.append(2.0)
        state.best["epoch"].append(3)
        state.restore()
        assert (state.losses, state.best) == ([1.0], {"epoch": [0]})


def test_an_object_that_cannot_be_copied_is_kept_itself() -> None:
    lock = threading.Lock()
    state = state_of(lock=lock)
    state.commit()
    state.restore()
    assert state.lock is lock


def test_other_attributes_are_not_part_of_the_state() -> None:
    state = state_of(batch=0)
    state.other = 1
    state.commit()
    state.other = 2
    state.restore()
    assert state.other == 2


def test_sync_sends_what_rank_0_has_now_and_all_have_saved_it() -> None:
    first, second = ranks_of({"batch": 1}, {"batch": 2})
    first.batch = 10  # not committed
    for state in (first, second):
        state.sync()
    for state in (first, second):
        assert state.batch == 10
        state.batch = 11
        state.restore()
        assert state.batch == 10


def test_what_cannot_be_sent_is_the_same_error_on_every_rank() -> None:
    states = ranks_of({"lock": threading.Lock()}, {"lock": None})
    for state in states:
        with pytest.raises(ValueError, match=r"attribute 'lock' \(lock\) cannot be pickled"):
            state.sync()


@pytest.mark.parametrize(
    ("kinds", "skips"),
    [([REMOVED], True), ([ADDED], False), ([REMOVED, ADDED], False), ([REMOVED, REMOVED], True)],
)
def test_changed_hosts_interrupt_and_only_removals_need_no_sync(
    kinds: list[int], skips: bool
) -> None:
    state = state_of()
    for i, kind in enumerate(kinds):
        state.on_hosts_updated(float(i + 1), kind)
    with pytest.raises(HostsUpdatedInterrupt) as interrupt:
        state.check_host_updates()
    assert interrupt.value.skip_sync is skips
    state.check_host_updates()  # it was said


def test_an_old_change_is_no_news() -> None:
    state = state_of()
    state.on_hosts_updated(5.0, ADDED)
    with pytest.raises(HostsUpdatedInterrupt):
        state.commit()
    state.on_hosts_updated(5.0, ADDED)
    state.on_hosts_updated(4.0, REMOVED)
    state.commit()


def test_the_driver_hears_of_a_commit_also_where_it_is_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[int] = []
    monkeypatch.setattr(rounds, "committed", lambda: told.append(1))
    state = state_of()
    state.check_host_updates()
    assert not told
    state.commit()
    state.on_hosts_updated(1.0, ADDED)
    with pytest.raises(HostsUpdatedInterrupt):
        state.commit()
    assert len(told) == 2


def test_a_commit_is_saved_before_it_is_interrupted() -> None:
    state = state_of(batch=0)
    state.on_hosts_updated(1.0, ADDED)
    state.batch = 3
    with pytest.raises(HostsUpdatedInterrupt):
        state.commit()
    state.batch = 4
    state.restore()
    assert state.batch == 3


def test_a_reset_forgets_earlier_news_and_calls_the_callbacks_in_order() -> None:
    state, called = state_of(), []
    state.register_reset_callbacks([lambda: called.append(1)])
    state.register_reset_callbacks([lambda: called.append(2)])
    state.on_hosts_updated(1.0, ADDED)
    state.on_reset()
    assert called == [1, 2]
    state.check_host_updates()


def test_names_are_horovods() -> None:
    from horovod.common import elastic

    assert elastic.ObjectState is ObjectState
    assert HostUpdateResult.mixed == REMOVED | ADDED
    assert callable(elastic.run_fn)
    assert elastic.notification_manager is not None
