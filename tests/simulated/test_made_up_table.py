"""A made-up table goes through the whole tuner: nothing there knows the five names."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NAMES = ("share", "rate", "workers", "eager", "block")
REAL = ("fusion", "cycle", "cache", "hierarchical", "MiB")


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """What the program has printed."""
    path = tmp_path_factory.mktemp("made_up") / "log.csv"
    program = (
        f"import sys, runpy; sys.path.insert(0, {str(HERE.parent)!r}); "
        f"sys.argv = ['made_up', {str(path)!r}]; "
        f"runpy.run_path({str(HERE / 'made_up_table.py')!r}, run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_it_is_searched_and_certified(said: dict) -> None:
    assert said["complaints"] == []
    assert said["certified"] and set(said["done"]) == set(NAMES)
    first, *others = said["tried"]
    assert all(any(one[name] != first[name] for one in others) for name in NAMES)


def test_its_log_comes_back_and_ends_with_the_result(said: dict) -> None:
    head, *rows = said["csv"].splitlines()
    assert head == ",".join([*(f"{name}_column" for name in NAMES), "score"])
    assert said["read"] == said["tried"] and len(rows) == len(said["tried"]) + 1
    assert said["finished"] and said["result"] == said["done"]


def test_every_format_and_the_table_of_trials_say_its_names(said: dict) -> None:
    assert len(said["formats"]) == 10
    for name in NAMES:
        assert name in said["show"].split("\n\n")[1].split("\n")[1]
        for form, text in said["formats"].items():
            by_name = form in ("text", "flags", "yaml", "json")
            wanted = name if by_name else f"MADE_UP_{name.upper()}"
            assert wanted in text, form
    assert f"{said['done']['block'] // 1024} KiB" in said["formats"]["text"]


def test_nothing_speaks_of_the_parameters_of_the_table_that_it_replaces(said: dict) -> None:
    texts = [said["csv"], said["show"], *said["said"], *said["formats"].values()]
    assert len(said["said"]) > 10
    assert [text for text in texts if any(word in text for word in REAL)] == []
