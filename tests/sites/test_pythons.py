"""The binary wheel of every Python at hand trains with TensorFlow on two ranks, without MPI."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sites.sites import ROOT, Site, must, site_environment

pytestmark = pytest.mark.timeout(1800)  # a wheel is built for each

EXAMPLE = ROOT / "examples/tensorflow/digits_tape.py"
OWN = f"python3.{sys.version_info.minor}"


def find_python(name: str) -> str:
    """Return the path of the interpreter ``name``; skips where there is none that runs."""
    path = sys.executable if name == OWN else shutil.which(name)
    if path is None or subprocess.run([path, "-c", "import ssl"], capture_output=True).returncode:
        pytest.skip(f"no {name} on PATH")
    return path


@pytest.mark.parametrize("name", ["python3.11", "python3.12", "python3.13"])
def test_the_wheel_of_this_python_trains_with_tensorflow(name: str, top: Path) -> None:
    python, venv, folder = find_python(name), top / f"tf-{name}", top / f"wheel-{name}"
    if not (venv / "complete").exists():
        environ = site_environment()
        must([sys.executable, ROOT / "release/wheel.py", "--output", folder, python], environ, 1200)
        (wheel,) = folder.glob("hvd_autotune-*-manylinux_2_28_x86_64.whl")
        must([python, "-m", "venv", venv], environ)
        pip = [venv / "bin/python", "-m", "pip", "install", "-q"]
        must([*pip, "-c", ROOT / ".constraints.txt", "tensorflow-cpu", wheel], environ)
        (venv / "complete").touch()
    site = Site(name=name, bin=venv / "bin", mpi_bin=venv / "bin")
    words = ["horovodrun", "--gloo", "-np", "2", site.bin / "python", EXAMPLE, "--epochs", "8"]
    result = site.run(*words, limit_s=300)
    assert result.returncode == 0, result.stderr
    accuracy = [float(text) for text in re.findall(r"test accuracy ([\d.]+)%", result.stdout)]
    assert len(accuracy) == 8 and accuracy[-1] > 85
