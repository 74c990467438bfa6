"""No module needs, directly or through others, what needs it: imports inside functions count."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"autotune": ROOT / "autotune", "horovod": ROOT / "core" / "horovod"}
ON_FIRST_USE = {
    ("horovod", "horovod.runner"),
    ("horovod.runner.launch", "horovod.runner.arguments"),
}
"""``horovod.run`` is imported when somebody asks for it; ``launch._run`` is there for its name."""


def module_name(path: Path, package: str) -> str:
    parts = path.relative_to(PACKAGES[package].parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(source: str) -> Iterator[tuple[str, str]]:
    """Yield (module, name in it or "") of every import that is made at run time."""
    nodes: list[ast.AST] = [ast.parse(source)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if not isinstance(node, ast.expr):  # an import is a statement
            nodes += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.module, alias.name) for alias in node.names)


def needs(sources: dict[str, str]) -> dict[str, set[str]]:
    """Return {module: modules that it imports}, of those in ``sources``.

    A name that is no module belongs to its package, except where it is the compiled engine.
    """
    graph: dict[str, set[str]] = {name: set() for name in sources}
    for module, source in sources.items():
        for package, name in imported(source):
            target = f"{package}.{name}" if f"{package}.{name}" in sources else package
            if target in sources and name != "_engine" and (module, target) not in ON_FIRST_USE:
                graph[module].add(target)
    return graph


def circle(sources: dict[str, str]) -> list[str]:
    """Return modules of which each needs the next, first and last the same; [] without one."""
    try:
        TopologicalSorter(needs(sources)).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_form_no_circle(package: str) -> None:
    paths = PACKAGES[package].rglob("*.py")
    sources = {module_name(path, package): path.read_text(encoding="utf-8") for path in paths}
    assert len(sources) > 40
    assert circle(sources) == []


def test_a_circle_through_a_function_is_found() -> None:
    sources = {
        "a": "from b import c",
        "b": "",
        "b.c": "def f():\n    import d",
        "d": "import a",
    }
    assert circle(sources) != []
    assert circle({**sources, "d": "if TYPE_CHECKING:\n    import a"}) == []
