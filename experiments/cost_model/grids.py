"""Measured grids: one CSV per job with every sample, and what the job was in index.json."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.costmodel import Workload
from autotune.space import PARAMETERS
from autotune.trial import CommParams

FOLDER = Path(__file__).resolve().parent / "grids"
INDEX = "index.json"
NAMES = tuple(parameter.name for parameter in PARAMETERS)


@dataclass(frozen=True, kw_only=True)
class Grid:
    """One job: what it was, and the samples of each setting in ms, in the order of measuring.

    Attributes:
        name: The file's stem.
        about: Entry of the index: hosts, local_size, rate_mbit, block, machine.
        workload: Its tensors.
        cells: {setting: samples}; ``about["block"]`` samples in a row are consecutive steps.
    """

    name: str
    about: Mapping[str, Any]
    workload: Workload
    cells: Mapping[CommParams, tuple[float, ...]]


def write(name: str, result: dict[str, Any], folder: Path = FOLDER) -> None:
    """Store what ``rank.py`` told."""
    folder.mkdir(parents=True, exist_ok=True)
    cells = result.pop("cells")
    with (folder / f"{name}.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*NAMES, "step_ms"])
        for cell in cells:
            values = [f"{float(cell[key]):.12g}" for key in NAMES]
            writer.writerow([*values, " ".join(f"{sample:.2f}" for sample in cell["step_ms"])])
    path = folder / INDEX
    index = json.loads(path.read_text()) if path.exists() else {}
    result["ready_us"] = [round(value) for value in result["ready_us"]]
    index[name] = result
    path.write_text(json.dumps(dict(sorted(index.items()))).replace('}, "', '},\n"') + "\n")


def read(folder: Path = FOLDER) -> list[Grid]:
    """Return all grids of ``folder``."""
    index = json.loads((folder / INDEX).read_text())
    return [_read(name, about, folder) for name, about in index.items()]


def _read(name: str, about: dict[str, Any], folder: Path) -> Grid:
    about = dict(about)
    workload = Workload(
        sizes=tuple(about.pop("sizes")),
        ready_us=tuple(about.pop("ready_us")),
        compute_us=about.pop("compute_us"),
    )
    with (folder / f"{name}.csv").open(newline="") as file:
        cells = {
            CommParams(**{p.name: p.type(float(row[p.name])) for p in PARAMETERS}): tuple(
                float(word) for word in row["step_ms"].split()
            )
            for row in csv.DictReader(file)
        }
    return Grid(name=name, about=about, workload=workload, cells=cells)
