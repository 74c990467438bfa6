"""The process around a rank: streams unchanged, files, signals, exit codes, one record."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from horovod.runner import rank_process
from horovod.runner.rank_process import (
    Tail,
    encode_record,
    find_rank,
    place_of,
    rank_folder,
)
from horovod.runner.supervise import End, RecordReader


def start(code: str, **options: Any) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-I",
        "-S",
        rank_process.__file__,
        json.dumps({"size": 11} | options),
    ]
    return subprocess.Popen(
        [*command, sys.executable, "-I", "-S", "-c", code],
        env={**os.environ, "PMIX_RANK": "3"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def run(code: str, given: bytes = b"", **options: Any) -> tuple[int, bytes, bytes, list[End]]:
    process = start(code, **options)
    out, err = process.communicate(given, timeout=20)
    passed, records = RecordReader().feed(err)
    return process.returncode, out, passed, [End(**each) for each in records if each["code"]]


def test_bytes_pass_in_both_directions_unchanged(tmp_path: Path) -> None:
    code = (
        "import sys; d = sys.stdin.buffer.read(); sys.stdout.buffer.write(d); sys.stderr.write('x')"
    )
    data = bytes(range(256)) * 2000
    assert run(code, data, output=str(tmp_path)) == (0, data, b"x", [])
    folder = tmp_path / "rank.03"
    assert (folder / "stdout").read_bytes() == data
    assert (folder / "stderr").read_bytes() == b"x"


def test_a_failing_rank_tells_code_and_last_lines() -> None:
    code = "print(*range(40), sep='\\n', flush=True); raise SystemExit('no \\u00e4 \\x1b end')"
    status, _, _, failures = run(code)
    assert status == 1
    assert [(f.rank, f.code, f.told) for f in failures] == [(3, 1, False)]
    assert len(failures[0].tail) == rank_process.TAIL_LINES
    assert "exit code 1; its last lines:\n    | 21" in failures[0].describe()


def test_a_signal_ends_both_alike() -> None:
    status, _, _, failures = run("import os; os.kill(os.getpid(), 9)")
    assert status == -signal.SIGKILL
    assert "signal 9 (SIGKILL)" in failures[0].describe()
    assert failures[0].exit_code == 137


def test_a_command_that_does_not_exist_is_named(tmp_path: Path) -> None:
    command = [sys.executable, rank_process.__file__, "{}", str(tmp_path / "nowhere")]
    result = subprocess.run(command, capture_output=True, timeout=20)
    assert result.returncode == rank_process.CANNOT_START
    (record,) = RecordReader().feed(result.stderr)[1]
    assert "nowhere" in record["tail"][0]


def test_only_the_start_of_the_command_cannot_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "taken" / "rank.03" / "stderr").mkdir(parents=True)
    for output, why in (
        (tmp_path / "file", "Not a directory"),
        (tmp_path / "file" / "below", "Not a directory"),
        (tmp_path / "taken", "Is a directory"),
    ):
        status, out, _, (failure,) = run("print('never')", output=str(output))
        assert (status, out, failure.code) == (1, b"", 1)
        assert failure.tail[0].startswith(f"--output-filename: {output}")
        assert failure.tail[0].endswith(why)


def test_a_copy_without_room_is_given_up_and_the_command_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "rank.03"
    folder.mkdir()
    (folder / "stdout").symlink_to("/dev/full")
    status, out, err, failures = run("print('a'); print('b')", output=str(tmp_path))
    assert (status, out, failures) == (0, b"a\nb\n", [])
    assert err.decode() == f"horovodrun: {folder}/stdout is incomplete: No space left on device\n"


def test_a_signal_reaches_the_command_once_and_is_no_failure_of_its_own() -> None:
    code = (
        "import signal, time, os\n"
        "def caught(*_): os.write(1, b'caught\\n'); time.sleep(0.2); os._exit(5)\n"
        "signal.signal(15, caught)\n"
        "os.write(1, b'ready\\n')\n"
        "time.sleep(30)"
    )
    process = start(code)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.terminate()
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (5, b"caught\n")
    ending, end = RecordReader().feed(err)[1]
    assert (ending, end["told"]) == ({"ending": 3}, True)


def test_a_rank_that_ends_well_says_so_too() -> None:
    _, err = start("print('fine')").communicate(timeout=20)
    (record,) = RecordReader().feed(err)[1]
    assert (record["rank"], record["code"], record["told"], record["tail"]) == (3, 0, False, [])


def test_the_command_dies_with_its_process(tmp_path: Path) -> None:
    process = start("import os, time; print(os.getpid(), flush=True); time.sleep(30)")
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.kill()
    process.communicate(timeout=20)
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        if Path(f"/proc/{pid}/stat").read_text().split(")")[-1].split()[0] == "Z":
            break
        time.sleep(0.01)
    assert time.monotonic() < deadline


def test_what_outlives_the_command_does_not_hold_the_job() -> None:
    code = "import subprocess; subprocess.Popen(['sleep', '25']); print('done')"
    assert run(code)[:2] == (0, b"done\n")


def test_timestamps_begin_every_line() -> None:
    _, out, _, _ = run("print('a'); print('b')", timestamps=True)
    assert re.fullmatch(rb"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} [ab]\n){2}", out)


def test_records_survive_any_cut_of_the_stream() -> None:
    record = {"rank": 1, "host": "h", "code": 2, "told": False, "tail": ["x" * 100]}
    stream = b"before\x1e" + encode_record(record) + b"after \x1ehorovod"
    for cut in range(len(stream) + 1):
        reader = RecordReader()
        first, second = reader.feed(stream[:cut]), reader.feed(stream[cut:])
        assert first[0] + second[0] + reader.rest() == b"before\x1eafter \x1ehorovod"
        assert [*first[1], *second[1]] == [record]


def test_a_forged_record_is_dropped() -> None:
    stream = rank_process.RECORD_START + b"no base64!" + rank_process.RECORD_END
    assert RecordReader().feed(stream) == (b"", [])


def test_a_record_is_written_in_one_piece() -> None:
    tail = Tail()
    tail.add(1, "\u4e2d\x1b\n".encode() * 5000)
    record = {"rank": 10**6, "host": "h" * 200, "code": -9, "told": True, "tail": tail.lines()}
    assert len(encode_record(record)) < 4096


def test_folders_are_padded_to_the_widest_rank() -> None:
    assert rank_folder("d", 1, 2).name == "rank.1"
    assert rank_folder("d", 1, 10).name == "rank.1"
    assert rank_folder("d", 1, 11).name == "rank.01"
    assert rank_folder("d", 7, 1000).name == "rank.007"


@pytest.mark.parametrize(
    ("environ", "rank"),
    [({"OMPI_COMM_WORLD_RANK": "2", "SLURM_PROCID": "0"}, 2), ({"PMI_RANK": "1"}, 1), ({}, 0)],
)
def test_rank_is_what_the_launcher_says(environ: dict[str, str], rank: int) -> None:
    assert find_rank(environ) == rank


@pytest.mark.parametrize(
    ("rank", "local", "size", "hosts", "cross"),
    [
        (3, (1, 2), 4, 2, (1, 2)),
        (1, (1, 2), 2, 0, (0, 1)),  # all on one host
        (1, (0, 2), 4, 2, (None, None)),  # in turns over the hosts
        (2, (0, 1), 3, 0, (None, None)),  # 2 + 1
        (2, (0, 1), 3, 3, (2, 3)),
    ],
)
def test_a_place_among_hosts_is_told_where_it_is_certain(
    rank: int, local: tuple[int, int], size: int, hosts: int, cross: tuple[int | None, ...]
) -> None:
    environ = {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(local[0]),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(local[1]),
    }
    place = place_of(environ, size, hosts)
    assert (place["RANK"], place["SIZE"]) == (rank, size)
    assert (place["LOCAL_RANK"], place["LOCAL_SIZE"]) == local
    assert (place.get("CROSS_RANK"), place.get("CROSS_SIZE")) == cross


def test_lines_of_the_two_streams_are_not_mixed_within():
    tail = Tail()
    tail.add(1, b"line of ")
    tail.add(2, b"Traceback\n  File")
    tail.add(1, b"rank 1\nno newline")
    tail.add(2, b" x\n")
    assert tail.lines() == ["Traceback", "line of rank 1", "  File x", "no newline"]
    tail.add(2, b"y" * 100_000)
    assert tail.lines()[-1] == "y" * rank_process.TAIL_BYTES
