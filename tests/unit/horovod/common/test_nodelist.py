"""Slurm's node lists mean what ``scontrol show hostnames`` prints."""

from __future__ import annotations

import pytest

from horovod.common.nodelist import expand, first_node, repeated


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("login1", ["login1"]),
        ("a,b.c-d,e", ["a", "b.c-d", "e"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[009-011,7],x", ["n009", "n010", "n011", "n7", "x"]),
        ("r[1-2]n[08-09]", ["r1n08", "r1n09", "r2n08", "r2n09"]),
        ("cn[1,3]-ib", ["cn1-ib", "cn3-ib"]),
    ],
)
def test_a_list_stands_for_its_names(text: str, names: list[str]) -> None:
    assert expand(text) == names
    assert first_node(text) == (names or [""])[0]


def test_the_first_of_very_many_nodes_is_found_at_once() -> None:
    assert first_node("n[000000-999999],m") == "n000000"


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("", []), ("4", [4]), ("2(x3),1", [2, 2, 2, 1]), ("1,16(x2)", [1, 16, 16])],
)
def test_repeated_numbers_are_written_out(text: str, numbers: list[int]) -> None:
    assert repeated(text) == numbers
