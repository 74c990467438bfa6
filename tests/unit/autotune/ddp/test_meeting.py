"""The ranks meet at a store: what differs or is missing is one reason for all of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from autotune.ddp import meeting
from autotune.ddp.lines import Invitation
from autotune.ddp.meeting import Arrival, Verdict


class Store:
    """A store in which nobody else writes."""

    def __init__(self) -> None:
        self.content: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self.content[key] = value

    def get(self, key: str) -> bytes:
        return self.content[key].encode()

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        missing = set(keys) - set(self.content)
        if missing:
            raise TimeoutError(f"{missing} after {timeout}")

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        if self.content.get(key, "") == expected:
            self.content[key] = desired
        return self.get(key)


INVITATION = Invitation(host="a", addresses=["10.0.0.1"], port=5, key="k", answer="a")
HERE = Arrival(host="a", cores=[0, 1], baseline={"bucket_cap_bytes": 0}, fixed={})


def test_what_is_told_arrives() -> None:
    store = Store()
    for rank in range(3):
        meeting.arrive(store, rank, replace(HERE, cores=[rank]))
    assert [one.cores for one in meeting.arrivals(store, 3)] == [[0], [1], [2]]
    said = Verdict(invitation=INVITATION, start={"bucket_cap_bytes": 5})
    meeting.announce(store, said)
    assert meeting.verdict(store) == said


def test_a_rank_that_does_not_come_is_an_error() -> None:
    store = Store()
    meeting.arrive(store, 0, HERE)
    with pytest.raises(TimeoutError):
        meeting.arrivals(store, 2)
    with pytest.raises(TimeoutError):
        meeting.verdict(store)


@pytest.mark.parametrize(
    ("other", "word"),
    [
        (replace(HERE, trouble="torch 9 is not known here"), "torch 9 is not known here (rank 1)"),
        (replace(HERE, fixed={"bucket_cap_bytes": 1}), "variables AUTOTUNE_"),
        (replace(HERE, baseline={"bucket_cap_bytes": 1}), "module must be the same"),
    ],
)
def test_one_rank_that_differs_is_a_reason(other: Arrival, word: str) -> None:
    assert word in meeting.disagreement([HERE, other])
    assert meeting.disagreement([HERE, HERE]) == ""


@pytest.mark.parametrize("first", [True, False])
def test_what_is_settled_first_holds_for_all(first: bool) -> None:
    store = Store()
    ranks = [meeting.Decisions(store) for _ in range(3)]
    assert [one.settle(7, said) for one, said in zip(ranks, [first, True, False], strict=True)] == [
        first
    ] * 3
    assert ranks[0].settle(8, not first) is not first


def test_a_store_that_is_gone_is_an_error_of_the_connection() -> None:
    store = Store()
    store.compare_set = None  # type: ignore[assignment, method-assign]
    with pytest.raises(OSError, match="store cannot be reached"):
        meeting.Decisions(store).settle(1, True)
