"""Checks what linters do not see: includes of the C++ sources and imports of the native module.

* outside csrc/bindings: no Python.h, no pybind11; no torch header anywhere;
* no mpi.h anywhere, as no MPI is there when the package is built (comm/mpi/mpi_point_to_point.h);
* csrc/engine: no nccl.h, no CUDA header, and no header of a backend: of csrc/comm only what lies in
  that folder itself (interfaces, and the choice among backends);
* csrc: no environment variables;
* folders point one way: bindings -> engine -> control | comm -> common;
* the folders of csrc/comm, and those of csrc/engine, have no circle among them;
* ``horovod._engine`` is imported by a few modules only.

Prints one line per offence; exit code 1 if there is any.
"""

from __future__ import annotations

import ast
import graphlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
# What the files of each folder may include besides their own.
LAYERS = {
    "common": (),
    "control": ("common",),
    "nccl_tuner": (),
    "comm": ("common", "nccl_tuner"),
    "engine": ("common", "control", "comm"),
    "bindings": ("common", "control", "comm", "engine"),
    "tensorflow": ("common", "bindings"),
}
ENGINE_IMPORTERS = re.compile(
    r"horovod/(common|tuning/session|torch|tensorflow/library|runner/probe)\b"
)

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
PYTHON = re.compile(r"^(Python\.h|pybind11/)")
TORCH = re.compile(r"^(torch|ATen|c10|caffe2)/")
MPI = re.compile(r"^(mpi|mpi-ext)\.h$")
BACKENDS = re.compile(r"^(nccl\.h|cuda|cuda_runtime)")
ENVIRONMENT = re.compile(r"\b(secure_)?getenv\s*\(|\bsetenv\s*\(|\bputenv\s*\(")
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def check_source(path: Path, csrc: Path) -> Iterator[str]:
    """Yield what is wrong with one C++ file."""
    layer = path.relative_to(csrc).parts[0]
    text = COMMENT.sub("", path.read_text(encoding="utf-8"))
    for name in INCLUDE.findall(text):
        if layer != "bindings" and PYTHON.match(name):
            yield f"includes {name}: only csrc/bindings knows Python"
        if TORCH.match(name):
            yield f"includes {name}: no torch headers in the engine"
        if MPI.match(name):
            yield f"includes {name}: the package is built without MPI"
        folders = folders_of(path, name, csrc)
        is_backend = BACKENDS.match(name) or (folders[:1] == ("comm",) and len(folders) > 1)
        if layer == "engine" and is_backend:
            yield f"includes {name}: only through the interfaces in csrc/comm itself"
        if folders and folders[0] not in (layer, *LAYERS.get(layer, LAYERS)):
            yield f"includes {name}: {layer} must not know {folders[0]}"
    if ENVIRONMENT.search(text):
        yield "reads the environment: options arrive as one struct"


def folders_of(path: Path, include: str, csrc: Path) -> tuple[str, ...]:
    """Return the folders below csrc of what ``include`` in ``path`` leads to; () if not there."""
    for base in (csrc, path.parent):
        target = (base / include).resolve()
        if target.is_file() and target.is_relative_to(csrc):
            return target.relative_to(csrc).parts[:-1]
    return ()


def circle(top: Path, csrc: Path) -> Iterator[str]:
    """Yield the first circle of includes among the folders in ``top``.

    A header that lies in ``top`` itself is a room of its own there; a source may use all of them.
    """
    includes: dict[str, set[str]] = {}
    for path in sorted(top.rglob("*.[hc]*")):
        room = path.relative_to(top).parts[0]
        if path.suffix == ".cc" and path.parent == top:
            continue
        for name in INCLUDE.findall(COMMENT.sub("", path.read_text(encoding="utf-8"))):
            target = (csrc / name).resolve()
            if target.is_file() and target.is_relative_to(top):
                other = target.relative_to(top).parts[0]
                includes.setdefault(room, set()).update({other} - {room})
    try:
        graphlib.TopologicalSorter(includes).prepare()
    except graphlib.CycleError as error:
        yield f"includes in a circle: {' -> '.join(error.args[1])}"


def engine_imports(path: Path) -> Iterator[str]:
    """Yield each import of ``horovod._engine`` in a Python file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module or ''}.{alias.name}" for alias in node.names]
        for name in names:
            if re.search(r"(^|\.)_engine($|\.)", name):
                yield f"line {node.lineno} imports {name}"


def offences(root: Path) -> Iterator[str]:
    """Yield every offence in the tree as "path: what"."""
    csrc = root / "csrc"
    for path in sorted(csrc.rglob("*")):
        if path.suffix in (".h", ".cc") and path.parent != csrc:
            yield from (f"{path.relative_to(root)}: {what}" for what in check_source(path, csrc))
    for folder in (csrc / "comm", csrc / "engine"):
        yield from (f"{folder.relative_to(root)}: {what}" for what in circle(folder, csrc))
    for top in ("autotune", "core/horovod"):
        for path in sorted((root / top).rglob("*.py")):
            name = path.relative_to(root / "core" if top != "autotune" else root).as_posix()
            if not ENGINE_IMPORTERS.match(name):
                yield from (f"{path.relative_to(root)}: {what}" for what in engine_imports(path))


if __name__ == "__main__":
    found = list(offences(ROOT))
    print("\n".join(found) or "includes and native imports: all as they should be")
    sys.exit(1 if found else 0)
