"""Ranks that run different builds say so in one sentence."""

from __future__ import annotations

import sys

import pytest

import horovod
from horovod import _engine
from horovod.common.builds import find_difference, own_build

HERE = ("0.29.0", 1, "little")


def test_equal_builds_may_talk() -> None:
    assert find_difference([HERE] * 3) is None
    assert find_difference([own_build()] * 2) is None
    assert own_build() == (horovod.__version__, _engine.MESSAGE_FORMAT, sys.byteorder)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (("0.30.0", 1, "little"), ("hvd-autotune 0.29.0 on ranks 0, 2", "hvd-autotune 0.30.0")),
        (("0.29.0", 2, "little"), ("message format 1 on ranks 0, 2", "message format 2")),
        (("0.29.0", 1, "big"), ("byte order little on ranks 0, 2", "byte order big")),
        (
            ("0.30.0", 2, "little"),
            ("hvd-autotune 0.29.0, message format 1", "hvd-autotune 0.30.0, message format 2"),
        ),
    ],
)
def test_a_difference_names_ranks_and_both_versions(
    other: tuple[str, int, str], words: tuple[str, str]
) -> None:
    text = find_difference([HERE, other, HERE])
    assert text is not None
    assert f"{words[0]}" in text
    assert f"{words[1]} on rank 1; install the same build on all hosts" in text


@pytest.mark.parametrize("said", [None, "host-a", ("0.1", 1), ("0.1", "1", "little"), 7])
def test_a_rank_that_says_something_else_is_older(said: str | int | tuple[object] | None) -> None:
    text = find_difference([HERE, said])
    assert text is not None
    assert "hvd-autotune 0.29.0 on rank 0; an older hvd-autotune on rank 1" in text


def test_many_ranks_are_not_all_listed() -> None:
    text = find_difference([HERE] * 100 + [("0.30.0", 1, "little")])
    assert text is not None
    assert "ranks 0, 1, 2, 3, 4, 5, 6, 7, ...;" in text
    assert "on rank 100" in text
