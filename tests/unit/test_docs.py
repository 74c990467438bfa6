"""The README names every variable, option and command, and nothing that does not exist."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from autotune.cli.formats import FORMATS
from autotune.cli.main import _parser
from horovod.runner.launch import make_parser
from horovod.runner.options import OPTIONS
from horovod.tuning.settings import VARIABLES

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = (ROOT / "README.md", ROOT / "tests/README.md", ROOT / "experiments/digits/README.md")


def test_every_variable_is_in_the_readme() -> None:
    names = {v.env for v in VARIABLES} | {option.env for option in OPTIONS}
    assert names - set(re.findall(r"`(HOROVOD_\w+)`", README)) == set()


def test_every_variable_in_the_readme_exists() -> None:
    names = {v.env for v in VARIABLES} | {option.env for option in OPTIONS}
    assert set(re.findall(r"HOROVOD_\w+", README)) - names == set()


def test_every_option_of_the_settings_table_exists() -> None:
    known = set(make_parser().format_help().split()) | {"--no-stall-check"}
    table = set(re.findall(r"\| `(--[\w-]+)` \|", README))
    assert len(table) > 15
    assert table - known == set()


def test_every_option_of_horovodrun_is_in_the_readme() -> None:
    named = set(re.findall(r"`(-[^`]*)`", README))
    shown = [a.option_strings for a in make_parser()._actions if a.help != "==SUPPRESS=="]
    missing = [flags for flags in shown if flags and not named & set(flags)]
    assert missing == [["--stall-check"]]  # it is on anyway


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.parent.name)
def test_linked_files_exist(document: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8"))
    assert [link for link in links if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.parent.name)
def test_make_targets_exist(document: Path) -> None:
    named = set(re.findall(r"\bmake ([a-z][a-z0-9-]+)", document.read_text(encoding="utf-8")))
    targets = set(re.findall(r"^([a-z0-9 -]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert named - {word for line in targets for word in line.split()} == set()


def test_every_format_is_in_the_table_of_formats() -> None:
    table = README.split("| format | is | use |")[1].split("\n\n")[0]
    named = [re.findall(r"`(\w+)`", row.split("|")[1]) for row in table.splitlines()[2:]]
    assert [name for names in named for name in names] == list(FORMATS)


def test_every_command_and_option_of_autotune_is_in_the_table_of_commands() -> None:
    table = README.split("| command | does |")[1].split("\n\n")[0]
    named = set(re.findall(r"`autotune (\w+)", table))
    for command, parser in autotune_parsers().items():
        options = {flag for flag in parser._option_string_actions if flag.startswith("--")}
        assert command in named
        assert {flag for flag in options - {"--help"} if flag not in table} == set()
    assert named <= set(autotune_parsers())


def autotune_parsers() -> dict[str, argparse.ArgumentParser]:
    (tasks,) = [a for a in _parser()._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(tasks.choices)


def test_the_readme_names_six_files_to_read_first() -> None:
    section = README.split("## Read these six files first")[1].split("\n## ")[0]
    assert len(re.findall(r"^\d\. \[", section, re.MULTILINE)) == 6
