"""Room for connections: counted, asked for, and missed by name."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from horovod.common.descriptors import OWN, needed
from horovod.common.world import place

ASKED = """
import json, os, resource, sys
from horovod.common.descriptors import make_room
soft, hard, count = map(int, sys.argv[1:])
open_ones = len(os.listdir("/proc/self/fd")) - 1
resource.setrlimit(resource.RLIMIT_NOFILE, (open_ones + soft, open_ones + hard))
said = make_room(count)
print(json.dumps([said, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - open_ones]))
"""


def ask(soft: int, hard: int, count: int) -> tuple[str | None, int]:
    """Return what is said, and the limit then, both counted from what is open."""
    words = [sys.executable, "-c", ASKED, str(soft), str(hard), str(count)]
    said, limit = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)
    return said, limit


@pytest.mark.parametrize(
    ("hosts", "rank", "kind", "connections"),
    [
        ((0,), 0, "tcp", 0),
        ((0, 0), 1, "mpi", 1),
        ((0, 0, 1, 1), 0, "mpi", 3 + 2),
        ((0, 0, 1, 1), 3, "mpi", 1 + 2),
        ((0, 0, 1, 1), 0, "tcp", 3 + 1 + 4 * 2),
        (tuple(range(257)), 5, "tcp", 1 + 6 + 2 * 256),
        (tuple(range(257)), 256, "tcp", 1 + 2 * 256),
        (tuple(range(2048)), 0, "tcp", 7 + 2047),
    ],
)
def test_ranks_have_connections_with_those_that_report_to_them_and_tcp_has_streams(
    hosts: tuple[int, ...], rank: int, kind: str, connections: int
) -> None:
    assert needed(place(rank, hosts), kind) == OWN + connections  # type: ignore[arg-type]


def test_a_limit_with_room_is_left_alone() -> None:
    assert ask(2000, 4000, 1000) == (None, 2000)


def test_a_limit_is_raised_as_far_as_it_has_to_be() -> None:
    said, limit = ask(100, 4000, 1000)
    assert said is None and 1000 + 256 <= limit <= 1000 + 260


def test_room_for_the_connections_alone_is_enough() -> None:
    assert ask(100, 1010, 1000) == (None, 1010)


def test_a_limit_that_cannot_be_raised_is_named_with_what_is_wanted() -> None:
    said, limit = ask(50, 80, 1000)
    assert said is not None and limit == 80
    assert "1000 are for the connections with other ranks" in said and "ulimit -n" in said
