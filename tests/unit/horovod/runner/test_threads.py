"""A thread in one call."""

from __future__ import annotations

import pytest

from horovod.runner.util.threads import in_thread


def test_target_runs_with_its_arguments() -> None:
    seen: list[int] = []
    in_thread(seen.append, (3,)).join(5)
    assert seen == [3]


def test_a_silent_thread_ends_without_a_word() -> None:
    in_thread([].remove, (3,), silent=True).join(5)


def test_arguments_must_be_a_tuple() -> None:
    with pytest.raises(ValueError, match="tuple"):
        in_thread(print, [3])  # type: ignore[arg-type]
