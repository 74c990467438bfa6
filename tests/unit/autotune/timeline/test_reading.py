"""Any file gives what is whole in it, or one clear reason."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.cli.main import main
from autotune.timeline import events as events_module
from autotune.timeline.events import EventReader
from unit.autotune.timeline.conftest import CYCLES, DATA, HOROVOD

CONTENT = HOROVOD.read_bytes()
WHOLE = json.loads(CONTENT)


def events_of(path: Path) -> tuple[list[dict], EventReader]:
    reader = EventReader(str(path))
    return [event for batch in reader.batches() for event in batch], reader


@pytest.mark.parametrize("path", [HOROVOD, CYCLES])
def test_horovods_files_are_read_whole(path: Path) -> None:
    events, reader = events_of(path)
    assert events == json.loads(path.read_text())
    assert reader.whole and reader.skipped_bytes == 0


@pytest.mark.parametrize("cut", [*range(1, 200, 3), *range(200, len(CONTENT), 331)])
def test_a_file_cut_anywhere_gives_all_whole_events(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "cut.json"
    path.write_bytes(CONTENT[:cut])
    events, reader = events_of(path)
    assert events == WHOLE[: len(events)]
    assert not reader.whole
    rest = CONTENT[:cut].decode()
    assert len(events) == sum(rest.count(end) for end in ("},{", "},\n{", "}]")) + ends(rest)


def ends(text: str) -> int:
    """Return 1 if the text ends with a whole event, which nothing follows that could tell."""
    try:
        json.loads(text.rstrip(", \n") + "]")
    except json.JSONDecodeError:
        return 0
    return int(text.rstrip(", \n") != "[")


@pytest.fixture
def block_bytes(monkeypatch: pytest.MonkeyPatch) -> int:
    """Let files be read in many small blocks."""
    monkeypatch.setattr(events_module, "BLOCK_BYTES", 1 << 14)
    return events_module.BLOCK_BYTES


def test_names_with_braces_quotes_and_newlines_are_no_boundaries(
    tmp_path: Path, block_bytes: int
) -> None:
    names = ['a"},\n{"b', "},{", "}] ", "grün", "\\", "\n"]
    events = [{"ph": "M", "pid": n % 7, "args": {"name": names[n % 6]}} for n in range(3000)]
    path = tmp_path / "names.json"
    path.write_text("[" + ",\n".join(json.dumps(e, ensure_ascii=False) for e in events) + "]")
    assert path.stat().st_size > 5 * block_bytes
    assert events_of(path)[0] == events


def test_damage_in_the_middle_costs_only_what_is_damaged(tmp_path: Path, block_bytes: int) -> None:
    lines = [json.dumps({"ph": "i", "ts": n}) for n in range(5000)]
    lines[2500] = '{"ph": "i", "ts'
    path = tmp_path / "damaged.json"
    path.write_text("[" + ",\n".join(lines) + "]")
    events, reader = events_of(path)
    assert path.stat().st_size > 5 * block_bytes and len(events) == 4999
    assert 0 < reader.skipped_bytes < 30


def test_a_large_file_needs_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    line = ',\n{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 1932, "pid": 1}'
    with path.open("w") as file:
        file.write('[{"ph": "i", "ts": 0}')
        for _ in range(200):
            file.write(line * 1000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    count = sum(len(batch) for batch in EventReader(str(path)).batches())
    assert count == 200_001
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "no such file"),
        ("", "empty"),
        ("[]", "no collective"),
        ("[\n", "no collective"),
        ("hello", "not a timeline"),
        ('{"a": 1}', "not a timeline"),
        ("[1, 2", "not a timeline"),
        ('[{"ph": "i", "ts": 1, "name": "CYCLE_START", "s": "g"}]', "no collective"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_1(capsys, tmp_path, content, reason) -> None:
    path = tmp_path / "t.json"
    if content is not None:
        path.write_text(content)
    assert main(["timeline", str(path)]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert str(path) in err and reason in err


@pytest.mark.parametrize("lost", [1, 2, 40, 999, 7000])
def test_a_file_without_its_head_gives_all_whole_events_and_says_so(
    capsys, tmp_path: Path, lost: int
) -> None:
    path = tmp_path / "tail.json"
    path.write_bytes(CONTENT[lost:])
    events, reader = events_of(path)
    assert events == WHOLE[len(WHOLE) - len(events) :]
    assert reader.headless and reader.whole
    assert len(WHOLE) - len(events) <= CONTENT[:lost].count(b'"ph"') + 1
    assert main(["timeline", str(path)]) == 0
    assert "has lost its beginning: all " in capsys.readouterr().out


def test_a_file_of_a_clock_since_boot_begins_at_its_first_event(capsys) -> None:
    assert main(["timeline", str(DATA / "timeline-clock-since-boot.json"), "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["duration_us"] == sum(report["phases_us"].values()) < 2e6
    assert report["first_collective_us"] == 30_105
    assert report["late_ranks"]["0"]["negotiations"] == 12
    assert not any("start-up" in finding["advice"] for finding in report["findings"])


def test_broadcasts_alone_get_no_advice_on_settings_and_are_no_step(capsys) -> None:
    assert main(["timeline", str(DATA / "timeline-broadcasts-only.json")]) == 0
    out = capsys.readouterr().out
    assert "broadcast.layer5.weight" in out and "Communication is under way" in out
    for wrong in ("cycle time", "HOROVOD_", "1 steps"):
        assert wrong not in out


def test_a_folder_is_no_timeline(capsys, tmp_path: Path) -> None:
    assert main(["timeline", str(tmp_path)]) == 1
    assert "is a directory" in capsys.readouterr().err


def damaged(draw) -> bytes:
    content = bytearray(CONTENT[: draw(st.integers(0, 4000))])
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(content)))
        content[start : start + draw(st.integers(0, 60))] = draw(st.binary(max_size=20))
    return bytes(content)


SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3))
ODD_EVENT = st.dictionaries(
    st.sampled_from(["ph", "ts", "pid", "tid", "name", "args", "dur"]),
    st.one_of(
        SCALARS,
        st.sampled_from(["B", "E", "X", "M", "i", "0", "1", "STEP", "NEGOTIATE_ALLREDUCE"]),
        st.lists(SCALARS, max_size=2),
        st.dictionaries(st.sampled_from(["name", "size", "dtype", "shape"]), SCALARS, max_size=3),
    ),
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    content=st.one_of(
        st.binary(max_size=100),
        st.composite(damaged)(),
        st.lists(ODD_EVENT, max_size=30).map(lambda events: json.dumps(events).encode()),
    )
)
def test_any_content_gives_an_answer_or_one_clear_reason(capsys, tmp_path, content) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(content)
    for arguments in (["--format", "json"], []):
        code = main(["timeline", str(path), *arguments])
        out, err = capsys.readouterr()
        assert (code, bool(out), err.count("\n")) in {(0, True, 0), (1, False, 1)}
