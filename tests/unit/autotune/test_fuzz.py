"""500 damaged logs of every kind: an answer or one clear line, never a traceback."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from autotune.cli.formats import FORMATS, render
from autotune.cli.main import main
from autotune.result import Result
from autotune.storage import open_logs
from autotune.storage.contract import RunInfo
from autotune.trial import CommParams, Fingerprint, RunState, Trial

DATA = Path(__file__).parents[2] / "data"
CHUNKS, LOGS_IN_CHUNK = 10, 50
DAMAGE = (b"", b"\n", b",", b"\x00", b"nan", b"-1", b"1e999", b"9" * 30, b'"', b"\xff\xfe", b"{")


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Whole logs: of Horovod, of ours, as CSV, as a database, as a saved result."""
    folder = tmp_path_factory.mktemp("whole")
    fingerprint = Fingerprint(
        tensors=(), size=2, local_size=2, cross_size=1, versions={"mpi": "5"}, fixed={}
    )
    own = open_logs(str(folder / "log.csv"), None, host="node1", pid=1)
    own.start(RunInfo(fingerprint=fingerprint, host="node1", pid=1, seed=7))
    trials = [
        Trial(trial_id=k, params=CommParams(cache_capacity=k), score=10.0 + k) for k in range(4)
    ]
    for trial in trials:
        own.add_trial(trial)
    own.finish_run(RunState.DONE, trials[2])
    own.close()
    saved = render(Result(params=CommParams(), score=1.0, job={"size": 2}), "json").encode()
    foreign = [path.read_bytes()[:900] for path in sorted(DATA.glob("*.csv"))]
    return [*foreign, *(path.read_bytes() for path in sorted(folder.iterdir())), saved]


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Return ``content`` with some of it cut, doubled or overwritten."""
    text = bytearray(content)
    for _ in range(rng.randint(1, 6)):
        start = rng.randrange(len(text) + 1)
        end = start + rng.choice((0, 1, 5, 60, len(text)))
        new = rng.choice((rng.choice(DAMAGE), rng.randbytes(rng.randint(1, 20)), text[start:end]))
        text[start:end] = bytes(new)
    return bytes(text)


def commands(log: str, rng: random.Random) -> list[list[str]]:
    format_name = rng.choice(list(FORMATS))
    best = ["best", log, "--format", format_name]
    return [best, *rng.choice(([], [["show", log]], [["runs", log]]))]


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_damaged_log_gives_an_answer_or_one_clear_line(capsys, tmp_path, logs, chunk) -> None:
    for seed in range(LOGS_IN_CHUNK * chunk, LOGS_IN_CHUNK * (chunk + 1)):
        rng = random.Random(seed)
        log = tmp_path / f"log-{seed}.csv"
        log.write_bytes(damaged(logs[seed % len(logs)], rng))
        for arguments in commands(str(log), rng):
            code = main(arguments)
            out, err = capsys.readouterr()
            where = f"seed {seed}, {arguments}: {code}, {out[:200]!r}, {err[:400]!r}"
            assert (code, bool(out)) in {(0, True), (1, False)}, where
            assert code == 0 or (err.strip() and str(log) in err), where
            assert all(line.startswith("autotune: ") for line in err.splitlines()), where


def test_there_are_500_logs_of_every_kind(logs) -> None:
    assert CHUNKS * LOGS_IN_CHUNK == 500
    assert any(log.startswith(b"SQLite") for log in logs) and any(log[:1] == b"{" for log in logs)
