"""Versions are compared by their numbers."""

from __future__ import annotations

import pytest

from horovod.common.util import is_version_greater_equal_than


@pytest.mark.parametrize(
    ("version", "target", "newer"),
    [
        ("2.16.1", "2.6.0", True),
        ("2.6", "2.6.0", True),
        ("2.6.0rc1", "2.6.0", True),
        ("2.5.9", "2.6.0", False),
        ("3.0.0+cpu", "2.21", True),
    ],
)
def test_a_version_is_compared_by_its_numbers(version: str, target: str, newer: bool) -> None:
    assert is_version_greater_equal_than(version, target) is newer


def test_what_is_no_version_is_named() -> None:
    with pytest.raises(ValueError, match=r"expected a version such as 2\.16\.1, got 'main'"):
        is_version_greater_equal_than("main", "2.6.0")
