"""500 damaged logs: a page or one sentence, never a traceback; and a run that is very long."""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import made_logs
from autotune.cli.main import main

pytestmark = pytest.mark.timeout(280)
CHUNKS, LOGS_IN_CHUNK = 10, 50
CELLS = (None, "", "x", -1, 0, 1e308, -1e308, 10**30, "nan", b"\xff\x00", "2026", "{}", "[]", 0.5)
DAMAGE = (b"", b"\n", b",", b"\x00", b"nan", b"-1", b"1e999", b"9" * 30, b'"', b"\xff\xfe", b"{")
MOST_BYTES = 300 * 2**20


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Return ``content`` with some of it cut, doubled or overwritten."""
    text = bytearray(content)
    for _ in range(rng.randint(1, 6)):
        start = rng.randrange(len(text) + 1)
        end = start + rng.choice((0, 1, 5, 60))
        new = rng.choice((rng.choice(DAMAGE), rng.randbytes(rng.randint(1, 20)), text[start:end]))
        text[start:end] = bytes(new)
    return bytes(text)


def spoil(database: Path, rng: random.Random) -> None:
    """Put values that are not ours into some cells."""
    with sqlite3.connect(database) as connection:
        for _ in range(rng.randint(1, 4)):
            table = rng.choice(("runs", "trials", "samples", "certificates"))
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            column, value = rng.choice(columns), rng.choice(CELLS)
            if isinstance(value, int) and abs(value) > 2**62:
                value = float(value)
            rows = [row[0] for row in connection.execute(f"SELECT rowid FROM {table}")]
            if rows:
                change = f"UPDATE OR IGNORE {table} SET {column} = ? WHERE rowid = ?"
                with contextlib.suppress(sqlite3.IntegrityError):  # a number of a row
                    connection.execute(change, (value, rng.choice(rows)))
    connection.close()


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_damaged_log_gives_a_page_or_one_sentence(capsys, tmp_path, logs, chunk) -> None:
    kinds = ["gain", "no gain", "unfinished", "horovod", "nothing", "one rank"]
    for seed in range(LOGS_IN_CHUNK * chunk, LOGS_IN_CHUNK * (chunk + 1)):
        rng = random.Random(seed)
        source = Path(logs[kinds[seed % len(kinds)]])
        folder = tmp_path / str(seed)
        folder.mkdir()
        log = folder / "log.csv"
        shutil.copy(source, log)
        database = source.with_suffix(".db")
        if database.exists():
            shutil.copy(database, folder / "log.db")
            if rng.random() < 0.8:
                spoil(folder / "log.db", rng)
            else:
                path = rng.choice((log, folder / "log.db"))
                path.write_bytes(damaged(path.read_bytes(), rng))
        else:
            log.write_bytes(damaged(log.read_bytes(), rng))
        page = folder / "page.html"
        # Two logs are compared without the surrogate, which takes most of a page's time.
        command = ["watch", str(log), "--once"] if seed % 5 == 4 else None
        named = [str(log)] * (1 if seed % 5 == 0 else 2)
        code = main(command or ["report", *named, "-o", str(page)])
        out, err = capsys.readouterr()
        where = f"seed {seed}: {code}, {out[:200]!r}, {err[:400]!r}"
        assert (code, bool(out)) in {(0, True), (1, False)}, where
        assert code == 0 or len(err.splitlines()) == 1, where
        assert command or page.exists() == (code == 0), where
        assert all(line.startswith("autotune: ") for line in err.splitlines()), where


def test_there_are_500() -> None:
    assert CHUNKS * LOGS_IN_CHUNK == 500


def test_a_run_of_200_trials_and_100_000_samples_is_told_in_little_memory(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    made_logs.write(log, made_logs.long_run(200, 1000))
    more = "INSERT INTO samples SELECT NULL, {} FROM samples"
    with sqlite3.connect(log.with_suffix(".db")) as connection:
        names = [row[1] for row in connection.execute("PRAGMA table_info(samples)")]
        columns = ", ".join(name for name in names if name != "id")
        while connection.execute("SELECT count(*) FROM samples").fetchone()[0] < 100_000:
            connection.execute(more.format(columns))
    connection.close()
    page = tmp_path / "page.html"
    code = (
        "import resource, sys; from autotune.cli.main import main\n"
        "code = main(sys.argv[1:])\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)\n"
        "sys.exit(code)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, "report", str(log), "-o", str(page)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stderr.split()[-1]) * 1024 < MOST_BYTES
    text = page.read_text()
    assert len(text.encode()) < 1_000_000
    assert text.count("<tr") > 200
