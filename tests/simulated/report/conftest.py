"""Logs of simulated jobs: one with a gain, one without, one that was cut off."""

from __future__ import annotations

from pathlib import Path

import pytest

import made_logs
from autotune.report.story import Story, read_story


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """{what the log is: its path}; to be read only."""
    folder = tmp_path_factory.mktemp("report")
    made = {
        "gain": made_logs.job("bowl"),
        "no gain": made_logs.job("flat"),
        "nothing": made_logs.job("silent"),
        "unfinished": made_logs.job("bowl", 3, most_steps=400),
    }
    paths = {name: made_logs.write(folder / name / "log.csv", made[name]) for name in made}
    alone = folder / "alone" / "log.csv"
    alone.parent.mkdir()
    alone.write_bytes(Path(paths["gain"]).read_bytes())
    empty = folder / "empty.csv"
    empty.write_text("")
    one_rank = made_logs.write(folder / "one" / "log.csv", made["nothing"], size=1)
    horovod = Path(__file__).parents[2] / "data" / "horovod-0.28.1-autotune-many-small-2-ranks.csv"
    others = {"no database": alone, "empty": empty, "one rank": one_rank, "horovod": horovod}
    return paths | {name: str(path) for name, path in others.items()}


@pytest.fixture(scope="session")
def stories(logs: dict[str, str]) -> dict[str, Story]:
    """{what the log is: what it says}."""
    return {name: read_story(path) for name, path in logs.items()}
