"""The pure-Python wheel of `autotune` alone: it needs no horovod, and stands beside another one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder)]
    subprocess.run([*command, str(ROOT / "release/autotune")], check=True, timeout=300)
    (found,) = folder.glob("*.whl")
    return found


def test_it_is_pure_and_holds_the_package_and_nothing_else(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    own = {str(p.relative_to(ROOT)) for p in (ROOT / "autotune").rglob("*.py")}
    assert own <= set(names)
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"autotune"}


def test_its_requirements_are_those_of_the_whole_package() -> None:
    alone = tomllib.loads((ROOT / "release/autotune/pyproject.toml").read_text())["project"]
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needs = re.findall(r'^    "([\w-]+>=[\d.]+)",$', (ROOT / "pyproject.toml").read_text(), re.M)
    assert set(alone["dependencies"]) <= set(needs)
    assert alone["requires-python"] == whole["project"]["requires-python"]


def test_it_works_beside_another_horovod(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    (site / "horovod").mkdir()
    (site / "horovod" / "__init__.py").write_text("raise ImportError('another one')")
    log = tmp_path / "log.csv"
    log.write_text(
        "bucket_cap_mb,first_bucket_mb,gradient_as_bucket_view,score\n0,0,0,1\n4,0,1,2\n"
    )
    # Without what this Python's .pth files put before PYTHONPATH: the project itself, in place.
    python = [sys.executable, "-S"]
    environ = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{sysconfig.get_path('purelib')}"}
    for words in (["best", str(log), "--format", "ddp"], ["run", "--", sys.executable, "-c", "1"]):
        done = subprocess.run(
            [*python, "-P", "-m", "autotune", *words],
            env=environ,
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
    code = "import autotune.ddp, autotune; print(autotune.__file__)"
    shown = subprocess.run(
        [*python, "-c", code], env=environ, capture_output=True, text=True, cwd=tmp_path
    )
    assert shown.stdout.strip() == str(site / "autotune" / "__init__.py")
