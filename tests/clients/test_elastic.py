"""Horovod's elastic training script runs unchanged; the scenarios that its own tests play with it.

Those patch the inside of Horovod's launcher; here they go by the command line. Where Horovod leaves
out a host with its first failure, a worker is begun again here, so more ranks are left.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from clients.suites import build_environment

pytestmark = pytest.mark.timeout(5400)  # the first test of an environment builds it
SCRIPT = "horovod/test/integration/data/elastic_torch_main.py"
LIMIT_S = 300
FIND_HOSTS = """
import json, pathlib, sys
schedule, log = json.loads(sys.argv[1]), pathlib.Path(sys.argv[2])
epoch = len(log.read_text().splitlines()) if log.exists() else 0
hosts = next(hosts for number, hosts in schedule if number in (epoch, None))
print("\\n".join(hosts))
"""
Schedule = Sequence[tuple[int | None, Sequence[str]]]


@dataclass
class Played:
    """How a job ended, and the lines that rank 0 wrote, one an epoch."""

    code: int
    errors: str
    epochs: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Stage:
    """Where the script runs."""

    programs: Path
    script: Path
    folder: Path

    def play(
        self,
        flags: Sequence[str],
        *,
        schedule: Schedule = (),
        exits: Mapping[tuple[int, int], Sequence[int]] | None = None,
        script_flags: Sequence[str] = (),
    ) -> Played:
        """Run the script.

        Args:
            flags: Of horovodrun.
            schedule: (epoch, hosts) as the script knows it; hosts are found accordingly.
            exits: {(epoch, batch): numbers of ranks at their start} that end there.
            script_flags: More flags of the script.
        """
        log, find = self.folder / "log", self.folder / "find_hosts.py"
        log.unlink(missing_ok=True)
        find.write_text(FIND_HOSTS)
        words = [str(self.programs / "horovodrun"), *flags]
        own = ["--logfile", str(log), *script_flags]
        if schedule:
            text = json.dumps(schedule)
            command = [sys.executable, "-I", "-S", str(find), f"'{text}'", str(log)]
            words += ["--host-discovery-script", " ".join(command)]
            # The script waits for news of hosts: they come when new workers are ready.
            own += ["--discovery-schedule", text, "--discovery-wait", "120"]
        if exits:
            own += ["--exit-schedule", json.dumps({str(k): list(v) for k, v in exits.items()})]
        path = os.pathsep.join([str(self.programs), os.environ["PATH"]])
        result = subprocess.run(
            [*words, str(self.programs / "python"), str(self.script), *own],
            cwd=self.folder,
            env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        lines = log.read_text().splitlines() if log.exists() else []
        return Played(result.returncode, result.stderr, [json.loads(line) for line in lines])


@pytest.fixture
def stage(peers: Path, environments: Path, tmp_path: Path) -> Stage:
    return Stage(build_environment("peer", environments), peers / SCRIPT, tmp_path)


@pytest.mark.parametrize("slots", [1, 2])
def test_hosts_are_added_and_removed(stage: Stage, slots: int) -> None:
    schedule: Schedule = [
        (0, [f"localhost:{slots}"]),
        (1, [f"localhost:{slots}", f"127.0.0.1:{slots}"]),
        (None, [f"127.0.0.1:{slots}"]),
    ]
    flags = ["-np", str(slots), "--min-np", str(slots), "--max-np", str(2 * slots)]
    played = stage.play(flags, schedule=schedule)
    assert played.code == 0, played.errors
    names = ("start_rank", "size", "hostname", "rendezvous")
    assert [[epoch[name] for name in names] for epoch in played.epochs] == [
        [0, slots, "localhost", 1],
        [0, 2 * slots, "localhost", 2],
        [slots, slots, "127.0.0.1", 3],
    ]


@pytest.mark.parametrize("mode", ["exception", "kill"])
@pytest.mark.parametrize("fixed", [True, False])
def test_a_rank_that_ends_is_left_behind_and_begun_again(
    stage: Stage, mode: str, fixed: bool
) -> None:
    hosts = ["localhost:2", "127.0.0.1:2"]
    where = ["-H", ",".join(hosts)] if fixed else ["--max-np", "4"]
    played = stage.play(
        ["-np", "4", "--min-np", "2", *where],
        schedule=[] if fixed else [(None, hosts)],
        exits={(1, 0): [0]},
        script_flags=["--exit-mode", mode],
    )
    assert played.code == 0, played.errors
    first, *others = played.epochs
    assert (first["start_rank"], first["size"], first["rendezvous"]) == (0, 4, 1)
    assert len(others) == 2
    for epoch in others:
        assert epoch["start_rank"] == 1, "the next rank that has the state"
        assert epoch["size"] in (3, 4) and epoch["rendezvous"] >= 2


def test_a_job_whose_ranks_all_fail_ends_with_the_error(stage: Stage) -> None:
    schedule: Schedule = [(None, ["localhost:2", "127.0.0.1:2"])]
    flags = ["-np", "4", "--min-np", "2", "--max-np", "4"]
    played = stage.play(flags, schedule=schedule, exits={(1, 0): [0, 1, 2, 3]})
    assert played.code == 1 and len(played.epochs) == 1
    assert "was the first to fail: exit code 1" in played.errors


@pytest.mark.parametrize(("limit", "code"), [(1, 1), (2, 0)])
def test_resets_are_counted(stage: Stage, limit: int, code: int) -> None:
    schedule: Schedule = [
        (0, ["localhost:2"]),
        (1, ["localhost:2", "127.0.0.1:2"]),
        (None, ["127.0.0.1:2"]),
    ]
    flags = ["-np", "2", "--min-np", "2", "--max-np", "4", "--reset-limit", str(limit)]
    played = stage.play(flags, schedule=schedule)
    assert played.code == code, played.errors
    assert ("reset more than 1 times" in played.errors) == (limit == 1)
    assert len(played.epochs) == (2 if limit == 1 else 3)


def test_a_rank_that_ends_twice_is_begun_again_twice(stage: Stage) -> None:
    played = stage.play(
        ["-np", "4", "--min-np", "2", "--max-np", "4", "--blacklist-cooldown-range", "1", "2"],
        schedule=[(None, ["localhost:2", "127.0.0.1:2"])],
        exits={(1, 0): [3], (3, 0): [3]},
        script_flags=["--epoch-wait", "5", "--epochs", "5"],
    )
    assert played.code == 0, played.errors
    assert len(played.epochs) == 5
    assert [epoch["start_rank"] for epoch in played.epochs] == [0] * 5
    assert played.epochs[0]["size"] == 4 and played.epochs[-1]["rendezvous"] >= 3


def test_too_few_hosts_end_the_job_in_time(stage: Stage) -> None:
    flags = ["-np", "4", "--min-np", "4", "--max-np", "4", "--elastic-timeout", "1"]
    played = stage.play(flags, schedule=[(None, ["localhost:2"])])
    assert played.code == 1 and "room for 2 of at least 4 ranks" in played.errors
