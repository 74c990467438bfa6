"""The environment of the tier `tensorflow`: TensorFlow and Keras before all that this Python has.

It holds what is not part of `.venv` and finds the rest there: the project with its built engine,
PyTorch, pytest. Nothing is built a second time, and `.venv` stays as it is.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "tensorflow-env"
CONSTRAINTS = ROOT / ".constraints.txt"
INSTALLS = (
    ("tensorflow-cpu",),
    ("tf-keras", "--no-deps"),  # it wants the TensorFlow for GPUs
)


def python() -> Path:
    return FOLDER / "bin" / "python"


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return ``environ`` for the tests: mpi4py looks for an MPI in the environment it runs in."""
    libraries = sorted((Path(sys.prefix) / "lib").glob("libmpi.so.*"))
    own = {"MPI4PY_LIBMPI": str(libraries[0])} if libraries else {}
    return {**own, **environ, "TF_CPP_MIN_LOG_LEVEL": "2"}


def make() -> str:
    """Make the environment unless it is there, made of the same; return why that fails, or ""."""
    wanted, made_of = _ingredients(), FOLDER / "made-of"
    if made_of.exists() and made_of.read_text() == wanted:
        return ""
    shutil.rmtree(FOLDER, ignore_errors=True)
    if not _run(sys.executable, "-m", "venv", "--without-pip", FOLDER):
        return f"python -m venv cannot make {FOLDER}; what it says is above"
    _look_into_this_environment()
    for install in INSTALLS:
        pip = ("-m", "pip", "--disable-pip-version-check", "install", "-q", "-c", CONSTRAINTS)
        if not _run(python(), *pip, *install):
            return f"pip finds no {install[0]} for this Python here; what it says is above"
    made_of.write_text(wanted)
    return ""


def _ingredients() -> str:
    return f"{sys.version}\n{sys.prefix}\n{INSTALLS}\n{CONSTRAINTS.read_text()}"


def _look_into_this_environment() -> None:
    """What the new environment does not hold is found in the one of this Python."""
    places = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    lines = [f"import site; site.addsitedir({place!r})\n" for place in places]
    found = _output(python(), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    (Path(found.strip()) / "beside.pth").write_text("".join(lines))


def _output(*words: str | Path) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout


def _run(*words: str | Path) -> bool:
    """Run ``words``; return whether that went well. Where not, what they say is printed."""
    print("$", *words, flush=True)
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        print("no end within 300 s", flush=True)
        return False
    if done.returncode:
        print(done.stdout, done.stderr, sep="", flush=True)
    return done.returncode == 0
