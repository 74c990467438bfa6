"""The documents' notebook cell: executed as a notebook, it tunes and leaves a log."""

from __future__ import annotations

import json
import re
from pathlib import Path

from e2e.commands import FAST, Commands
from e2e.processes import whole_rows

GUIDE = (Path(__file__).parents[2] / "docs/launchers.md").read_text(encoding="utf-8")
SECOND_CELL = """
from autotune.cli.formats import render
from autotune.result import read_result

print(render(read_result("log.csv"), "text"))
"""


def notebook(*cells: str) -> str:
    """Return a notebook with these code cells."""
    content = [
        {
            "cell_type": "code",
            "id": f"cell-{number}",
            "source": source,
            "metadata": {},
            "outputs": [],
            "execution_count": None,
        }
        for number, source in enumerate(cells)
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    document = {"cells": content, "metadata": {"kernelspec": kernel}}
    return json.dumps({**document, "nbformat": 4, "nbformat_minor": 5})


def test_the_documents_cell_tunes_in_a_notebook(commands: Commands) -> None:
    (cell,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    path = commands.folder / "tune.ipynb"
    # Longer, as the tuner's process begins late where other tests share the cores.
    longer = cell.replace("range(600)", "range(4000)")
    assert longer != cell
    path.write_text(notebook(longer, SECOND_CELL))
    settings = {name: text for name, text in FAST.items() if name != "HOROVOD_AUTOTUNE"}
    home = {"IPYTHONDIR": str(commands.folder / "ipython"), "JUPYTER_PLATFORM_DIRS": "1"}
    words = ["jupyter-execute", "--inplace", "--timeout=100", path]
    result = commands.run(*words, limit_s=120, **settings, **home)
    assert result.returncode == 0, result.stderr
    first, second = (entry["outputs"] for entry in json.loads(path.read_text())["cells"])
    returned = [output["data"]["text/plain"] for output in first if "data" in output]
    assert len(returned) == 1 and "autotune: " in "".join(returned[0])
    assert "higher is better" in "".join(second[0]["text"])
    assert len(whole_rows(commands.folder / "log.csv")) >= 2
