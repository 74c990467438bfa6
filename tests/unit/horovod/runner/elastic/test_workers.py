"""Ranks of the next round: who has the state comes first, hosts stay together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from horovod.runner.elastic.workers import Worker, places, ranked

HOSTS = ["a", "b", "c"]


def worker(number: int, host: str, slot: int, rank: int = -1) -> Worker:
    return Worker(number=number, host=host, slot=slot, rank=rank, has_state=rank >= 0)


def numbers(workers: list[Worker]) -> list[int]:
    return [each.number for each in ranked(workers, HOSTS)]


def test_the_first_ranks_are_in_the_order_of_hosts_and_slots() -> None:
    all_workers = [worker(3, "b", 1), worker(2, "b", 0), worker(1, "a", 1), worker(0, "a", 0)]
    assert numbers(all_workers) == [0, 1, 2, 3]


def test_survivors_keep_their_order_and_a_replacement_stands_beside_its_host() -> None:
    # rank 0, of host a, is gone; worker 4 takes its slot
    all_workers = [
        worker(4, "a", 0),
        worker(1, "a", 1, 1),
        worker(2, "b", 0, 2),
        worker(3, "b", 1, 3),
    ]
    assert numbers(all_workers) == [1, 4, 2, 3]


def test_a_host_of_newcomers_comes_last_wherever_it_is_in_the_list() -> None:
    all_workers = [worker(5, "a", 0), worker(2, "b", 0, 0), worker(3, "b", 1, 1)]
    assert numbers(all_workers) == [2, 3, 5]


def test_who_has_been_in_a_round_but_not_got_the_state_is_never_the_first() -> None:
    all_workers = [worker(0, "a", 0, 0), worker(1, "b", 0, 1)]
    all_workers[0].has_state = False
    assert numbers(all_workers) == [1, 0]


@given(
    st.lists(st.tuples(st.sampled_from(HOSTS), st.integers(0, 3)), min_size=1, unique=True),
    st.data(),
)
def test_rank_0_has_the_state_and_hosts_are_contiguous(
    slots: list[tuple[str, int]], data: st.DataObject
) -> None:
    members = data.draw(st.sets(st.integers(0, len(slots) - 1)))
    old = data.draw(st.permutations(sorted(members)))
    workers = [
        worker(number, host, slot, old.index(number) if number in members else -1)
        for number, (host, slot) in enumerate(slots)
    ]
    order = ranked(workers, HOSTS)
    assert sorted(each.number for each in order) == list(range(len(slots)))
    if members:
        assert order[0].number == old[0]
    blocks = [each.host for i, each in enumerate(order) if i == 0 or order[i - 1].host != each.host]
    assert len(blocks) == len(set(blocks))
    for rank, place in enumerate(places(order)):
        assert (place["RANK"], place["SIZE"]) == (rank, len(slots))
        assert place["LOCAL_SIZE"] == sum(each.host == order[rank].host for each in order)
