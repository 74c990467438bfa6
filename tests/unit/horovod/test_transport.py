"""An engine takes the transport of its own rank, of a job of its own size, and no other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

_engine = pytest.importorskip("horovod._engine")

KEY = b"k" * 32
LIMIT_S = 30.0


@pytest.fixture(scope="module")
def of_two_ranks() -> list[Any]:
    """The transports of a job of two ranks, which are threads."""
    listeners = [_engine.TcpListener(rank, KEY) for rank in (0, 1)]
    addresses = [listener.address for listener in listeners]
    with ThreadPoolExecutor(2) as threads:
        begun = [threads.submit(each.connect, addresses, [0, 0]) for each in listeners]
        return [each.result(LIMIT_S) for each in begun]


def start(rank: int, size: int, transport: Any) -> None:
    options = _engine.Options()
    options.rank, options.size = rank, size
    _engine.Engine(options, None, "", KEY, transport)


@pytest.mark.parametrize(("rank", "size"), [(1, 2), (0, 3), (0, 1)])
def test_a_transport_of_another_rank_or_job_is_refused_in_one_sentence(
    of_two_ranks: list[Any], rank: int, size: int
) -> None:
    expected = rf"^expected a transport of rank {rank} of {size}, got one of rank 0 of 2$"
    with pytest.raises(_engine.InvalidRequest, match=expected):
        start(rank, size, of_two_ranks[0])


def test_several_ranks_need_a_transport() -> None:
    with pytest.raises(_engine.InvalidRequest, match=r"^expected .* rank 1 of 2, got none$"):
        start(1, 2, None)
