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
MADE_OF = FOLDER / "made-of"
"""What the environment was made of; it is made again where that is another one."""
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
    """Make the environment unless it is there; return why that cannot be done, or ""."""
    wanted = _ingredients()
    if MADE_OF.exists() and MADE_OF.read_text() == wanted:
        return ""
    shutil.rmtree(FOLDER, ignore_errors=True)
    problem = _run(sys.executable, "-m", "venv", "--without-pip", FOLDER)
    if problem:
        return f"cannot make {FOLDER.relative_to(ROOT)}: {problem}"
    _look_into_this_environment()
    for install in INSTALLS:
        pip = ("-m", "pip", "--disable-pip-version-check", "install", "-q", "-c", CONSTRAINTS)
        problem = _run(python(), *pip, *install)
        if problem:
            return f"cannot install {install[0]}: {problem}"
    MADE_OF.write_text(wanted)
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


def _run(*words: str | Path) -> str:
    """Run ``words``; return the last line of what went wrong, or ""."""
    print("$", *words, flush=True)
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        return "no end within 300 s"
    if done.returncode == 0:
        return ""
    errors = [line for line in done.stderr.splitlines() if line.strip()]
    return errors[-1].removeprefix("ERROR: ") if errors else f"exit code {done.returncode}"
