"""The documents name every variable, option and command, and nothing that does not exist."""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from autotune.cli.formats import FORMATS
from autotune.cli.main import _parser
from autotune.space import PARAMETERS
from horovod.common import rounds
from horovod.runner.launch import make_parser
from horovod.runner.options import OPTIONS
from horovod.runner.rank_process import PLACE_VARIABLES
from horovod.tuning.settings import VARIABLES

ROOT = Path(__file__).resolve().parents[2]
GUIDES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
DOCUMENTS = (
    *GUIDES,
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "tests/README.md",
    *sorted((ROOT / "experiments").glob("**/README.md")),
)
MOST_LINES = 150
WORDS_A_MINUTE = 230
"""Of a person who reads what is new to them."""
ELSEWHERE = {"HOROVOD_GPU_OPERATIONS"}
"""Variables of the original Horovod that a document may name."""


def text_of(*paths: Path) -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchor(title: str) -> str:
    """Return the anchor that GitHub gives a title."""
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")


README = text_of(ROOT / "README.md")
GUIDE = text_of(*GUIDES)


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= MOST_LINES


def test_every_variable_is_in_the_table_of_settings() -> None:
    names = {v.env for v in VARIABLES} | {option.env for option in OPTIONS}
    settings = text_of(ROOT / "docs/settings.md")
    assert names - set(re.findall(r"`((?:HOROVOD|AUTOTUNE)_\w+)`", settings)) == set()


@pytest.mark.parametrize("document", GUIDES, ids=name_of)
def test_every_variable_that_is_named_exists(document: Path) -> None:
    names = {v.env for v in VARIABLES} | {option.env for option in OPTIONS} | {*PLACE_VARIABLES}
    names |= {rounds.ELASTIC, rounds.WORKER, rounds.SLOT}
    assert set(re.findall(r"HOROVOD_\w*[A-Z]", text_of(document))) - names - ELSEWHERE == set()


def test_every_option_of_the_settings_table_exists() -> None:
    known = set(make_parser().format_help().split()) | {"--no-stall-check"}
    table = set(re.findall(r"\| `(--[\w-]+)` \|", text_of(ROOT / "docs/settings.md")))
    assert len(table) > 15
    assert table - known == set()


def test_every_option_of_horovodrun_is_named() -> None:
    named = set(re.findall(r"`(-[^`]*)`", GUIDE))
    shown = [a.option_strings for a in make_parser()._actions if a.help != "==SUPPRESS=="]
    missing = [flags for flags in shown if flags and not named & set(flags)]
    assert missing == [["--stall-check"]]  # it is on anyway


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_linked_files_exist(document: Path) -> None:
    if document.parent.parent == ROOT / "experiments" and not (ROOT / ".git").exists():
        pytest.skip("a source archive has no results of experiments")
    links = re.findall(r"\]\(([^)#:]+)\)", text_of(document))
    assert [link for link in links if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_linked_titles_exist(document: Path) -> None:
    for target, title in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", text_of(document)):
        there = document.parent / target if target else document
        titles = re.findall(r"^#+ (.*)$", text_of(there), re.MULTILINE)
        assert title in map(anchor, titles)


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_files_named_in_code_exist(document: Path) -> None:
    rooms = r"(?:autotune|core|csrc|tests|examples|experiments|docs)"
    named = re.findall(
        rf"(?<![\w/.-])({rooms}/[\w/.-]*\w\.(?:py|cc|h|md|sh|yaml|ipynb))\b", text_of(document)
    )
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_make_targets_exist(document: Path) -> None:
    named = set(
        re.findall(
            r"`make ([a-z][a-z0-9-]+)|^    make ([a-z][a-z0-9-]+)", text_of(document), re.MULTILINE
        )
    )
    targets = set(re.findall(r"^([a-z0-9 -]+):", text_of(ROOT / "Makefile"), re.MULTILINE))
    known = {word for line in targets for word in line.split()}
    assert {word for pair in named for word in pair if word} - known == set()


def test_every_document_is_linked_from_the_readme() -> None:
    links = set(re.findall(r"\]\((docs/[^)#]+)\)", README))
    assert {f"docs/{path.name}" for path in GUIDES[1:]} - links == set()


def test_every_experiment_is_in_the_index_of_experiments() -> None:
    links = set(re.findall(r"\]\(([^)#/]+)/README\.md\)", text_of(ROOT / "experiments/README.md")))
    folders = {path.parent.name for path in (ROOT / "experiments").glob("*/README.md")}
    assert folders - links == set()


def test_every_format_is_in_the_table_of_formats() -> None:
    table = text_of(ROOT / "docs/replay.md").split("| format | is | use |")[1].split("\n\n")[0]
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


@pytest.mark.parametrize("document", GUIDES, ids=name_of)
def test_every_command_of_autotune_that_is_named_exists(document: Path) -> None:
    named = set(re.findall(r"(?:`|^    )autotune ([a-z]+)", text_of(document), re.MULTILINE))
    assert named <= set(autotune_parsers())


def autotune_parsers() -> dict[str, argparse.ArgumentParser]:
    (tasks,) = [a for a in _parser()._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(tasks.choices)


def test_the_readme_names_six_files_to_read_first() -> None:
    section = README.split("## Read these six files first")[1].split("\n## ")[0]
    assert len(re.findall(r"^\d\. \[", section, re.MULTILINE)) == 6


def test_what_the_readme_names_to_read_first_is_read_in_ten_minutes() -> None:
    named = re.findall(r"^\d\. \[\S+\]\((\S+)\), up to `([^`]+)`", README, re.MULTILINE)
    heads = [text_of(ROOT / path).split(mark) for path, mark in named]
    assert [len(parts) > 1 for parts in heads] == [True] * 6
    one_step = text_of(ROOT / "docs/architecture.md").split("## One step")[1].split("\n## ")[0]
    text = "\n".join([one_step, *(parts[0] for parts in heads)])
    skipped = r"^(?:#include|import|from \S+ import) .*$"
    assert len(re.sub(skipped, "", text, flags=re.MULTILINE).split()) <= 10 * WORDS_A_MINUTE


def test_the_concepts_define_every_parameter_with_its_default() -> None:
    concepts = text_of(ROOT / "docs/concepts.md")
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|", concepts, re.MULTILINE))
    shown = {p.name: rows[p.name].strip().removesuffix(" MiB") for p in PARAMETERS}
    scale = {p.name: 2**20 if p.unit == "bytes" else 1 for p in PARAMETERS}
    defaults = {p.name: float(p.default) / scale[p.name] for p in PARAMETERS}
    assert {name: float(text) for name, text in shown.items()} == defaults


def test_every_room_is_in_the_table_of_rooms() -> None:
    table = text_of(ROOT / "docs/architecture.md").split("## Rooms")[1].split("\n\n")[1]
    named = set(re.findall(r"^\| \[([\w/]+)\]", table, re.MULTILINE))
    rooms = {
        f"{top}/{folder.name}"
        for top in ("autotune", "core/horovod", "csrc")
        for folder in (ROOT / top).iterdir()
        if any((*folder.glob("**/*.py"), *folder.glob("**/*.h")))
    }
    assert rooms - named == set()
    assert all((ROOT / room).is_dir() for room in named)


TERMS = (
    "parameter,setting,default,fixed,inert,step,training step,exposed,warm-up,window,sample,score,"
    "payload,bracket,gain,trial,run,plan,cost model,budget,incumbent,standing,certificate,pairs,"
    "regret,memory,drift,epoch"
)


@pytest.mark.parametrize("term", TERMS.split(","))
def test_the_concepts_define_every_term_once(term: str) -> None:
    bold = re.findall(r"\*\*([^*]+)\*\*", text_of(ROOT / "docs/concepts.md"))
    assert [word.lower() for word in bold].count(term) == 1


def test_the_example_scripts_are_python() -> None:
    scripts = sorted((ROOT / "examples").glob("**/*.py"))
    assert scripts
    for script in scripts:
        ast.parse(text_of(script), filename=name_of(script))


def test_the_notebook_is_the_cell_of_the_documents() -> None:
    (cell,) = re.findall(r"```python\n(.*?)```", text_of(ROOT / "docs/launchers.md"), re.DOTALL)
    notebook = json.loads(text_of(ROOT / "examples/tune.ipynb"))
    code = [c for c in notebook["cells"] if c["cell_type"] == "code"]
    assert "".join(code[0]["source"]) == cell.rstrip("\n")
    assert all(not c["outputs"] for c in code)


def test_the_manifest_is_an_mpi_job_whose_variables_exist() -> None:
    manifest = yaml.safe_load(text_of(ROOT / "examples/mpijob.yaml"))
    assert manifest["kind"] == "MPIJob"
    launcher = manifest["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    names = {v.env for v in VARIABLES}
    assert {entry["name"] for entry in launcher["env"]} <= names


def test_the_examples_name_variables_that_exist() -> None:
    names = {v.env for v in VARIABLES} | {option.env for option in OPTIONS} | {rounds.SLOT}
    files = [path for path in (ROOT / "examples").glob("**/*.*") if path.suffix != ".pyc"]
    assert set(re.findall(r"HOROVOD_\w*[A-Z]", text_of(*files))) - names == set()


def test_the_batch_script_is_a_shell_script() -> None:
    checked = subprocess.run(["bash", "-n", ROOT / "examples/slurm.sh"], timeout=10)
    assert checked.returncode == 0


def test_every_example_is_named_in_the_documents() -> None:
    files = [path for path in (ROOT / "examples").glob("**/*.*") if "__pycache__" not in path.parts]
    linked = set(re.findall(r"\]\((?:\.\./)?(examples/[^)#]+)\)", GUIDE))
    assert {name_of(path) for path in files} - linked == set()


def test_every_place_in_the_contributing_guide_exists() -> None:
    guide = text_of(ROOT / "CONTRIBUTING.md")
    places = re.findall(r"^\d\. \[[^]]+\]\(([^)#]+)\)", guide, re.MULTILINE)
    assert len(places) > 10
    assert [path for path in places if not (ROOT / path).exists()] == []
