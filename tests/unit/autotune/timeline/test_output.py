"""What people and programs get to see."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from autotune.cli.main import main
from autotune.timeline import analyse, plot
from autotune.timeline.compare import compare
from autotune.timeline.findings import findings
from unit.autotune.timeline.conftest import HOROVOD


@pytest.fixture
def late(tmp_path: Path, recorder) -> str:
    """Rank 1 sleeps 50 ms a step."""
    for _ in range(20):
        recorder.wait(5000)
        recorder.operation(["a", "b"], [(0, 10), (1, 50_000)], [10, 10, 10, 900])
    path = tmp_path / "late.json"
    path.write_text(json.dumps(recorder.events))
    return str(path)


def test_findings_are_sentences_with_figures(late: str) -> None:
    texts = {finding.key: str(finding) for finding in findings(analyse(late))}
    assert "Rank 1 is the slow one: last in 20 of 20 steps, by 50 ms" in texts["late_rank"]
    assert "balance data loading" in texts["negotiation"]
    assert "2.0 tensors, 1.95 KiB an operation" in texts["fusion"]
    assert "unknown, as the file has no BACKWARD" in texts["overlap"]
    assert all(text.endswith(".") for text in texts.values())


def test_ranks_that_are_late_in_turns_are_none_of_them_the_slow_one(recorder, read) -> None:
    for number in range(20):
        recorder.wait(5000)
        first = number % 2
        recorder.operation(
            ["a", "b"], [(first, 10), (1 - first, 50_000 + number)], [10, 10, 10, 900]
        )
    texts = {finding.key: str(finding) for finding in findings(read(recorder.events))}
    assert texts["late_rank"].startswith("No rank is slower than the others: they are late in")
    assert "in 50 % of 1" in texts["late_rank"]


def test_a_tensor_that_some_ranks_skipped_is_named_with_them(recorder, read) -> None:
    recorder.events[0]["args"]["size"] = 3
    recorder.operation(["a"], [(0, 1), (1, 1), (2, 1)], [1, 1, 1, 1])
    recorder.add("B", recorder.pid("skipped"), name="NEGOTIATE_ALLREDUCE")
    recorder.add("X", recorder.pid("skipped"), name="1", dur=0)
    recorder.wait(60_000_000)
    recorder.add("i", 0, name="CYCLE_START")
    report = read(recorder.events)
    assert report.unanswered == {"skipped": [0, 2]}
    assert "skipped still waits for rank 0, 2." in " ".join(map(str, findings(report)))


@pytest.mark.parametrize(("capacity", "is_told"), [(2, True), (3, False), (0, False)])
def test_a_cache_that_is_too_small_for_what_comes_again_is_told(
    recorder, read, capacity: int, is_told: bool
) -> None:
    recorder.add("i", 0, name="PARAMETERS", args={"cache_capacity": capacity})
    recorder.operation(["at the start"], [(0, 0), (1, 1)], [1, 1, 1, 1])
    for _ in range(2):
        recorder.operation(["a", "b", "c"], [(0, 0), (1, 1)], [1, 1, 1, 1])
    told = [str(finding) for finding in findings(read(recorder.events)) if finding.key == "cache"]
    expected = "The response cache holds 2 of 3 tensors that come again. "
    assert told == ([expected + "Set HOROVOD_CACHE_CAPACITY >= 4."] if is_told else [])


def test_a_cut_file_says_so(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_bytes(HOROVOD.read_bytes()[:9000])
    assert "was cut" in str(findings(analyse(str(path)))[0])


def test_text_shows_phases_tensors_ranks_and_findings(capsys, late: str) -> None:
    assert main(["timeline", late]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for part in ("waiting for the last rank", "transfer", "* Rank 1 is the slow one"):
        assert part in out
    told = [line for line in out.splitlines() if line.startswith("* ")]
    assert told == [f"* {finding}" for finding in findings(analyse(late))]


def test_two_files_are_before_and_after(capsys, late: str) -> None:
    assert main(["timeline", late, str(HOROVOD)]) == 0
    assert "all negotiation" in capsys.readouterr().out
    rows = {row.key: row for row in compare(analyse(late), analyse(str(HOROVOD)))}
    factor = rows["waiting_for_last_rank"].factor
    assert factor is not None and factor > 10
    assert rows["queue"].before_us == pytest.approx(10)
    assert rows["copies"].after_us > 0


def test_json_is_for_programs(capsys, late: str) -> None:
    assert main(["timeline", late, "--format", "json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["late_ranks"]["1"]["worst_us"] == 50_000
    assert content["findings"][0]["key"] == "total"
    assert main(["timeline", late, late, "--format", "json"]) == 0
    both = json.loads(capsys.readouterr().out)
    assert {row["factor"] for row in both["comparison"]} == {1.0}


def test_the_picture_has_a_bar_per_step_and_names_who_was_late(late: str, tmp_path) -> None:
    picture = tmp_path / "out.svg"
    assert main(["timeline", late, "--plot", str(picture)]) == 0
    text = picture.read_text()
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert ">rank 1<" in text and ">waiting for the last rank<" in text
    (panel,) = plot.draw([analyse(late)]).subfigs
    phases, ranks = panel.axes
    assert len(phases.patches) % 20 == 0
    assert [bar.get_height() for bar in ranks.patches] == pytest.approx([50.0] * 20)
    assert all(bar.get_height() >= 0 for bar in phases.patches)


def test_panels_share_their_scales(late: str) -> None:
    figure = plot.draw([analyse(late), analyse(str(HOROVOD))])
    for above, below in zip(*[panel.axes for panel in figure.subfigs], strict=True):
        assert above.get_ylim() == below.get_ylim()


def test_equal_timelines_have_equal_pictures_and_the_ending_is_the_format(late: str, tmp_path):
    for name in ("a.svg", "b.svg", "c.png"):
        assert main(["timeline", late, "--plot", str(tmp_path / name)]) == 0
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_says_how_many_bars_it_cuts_and_shortens_a_long_path(
    recorder, tmp_path: Path
) -> None:
    for number in range(10):
        recorder.operation(["x"], [(0, 0), (1, 1)], [1, 1, 1, 90_000 if number == 4 else 1000])
    path, picture = tmp_path / ("$f" * 50 + ".json"), tmp_path / "out.svg"
    path.write_text(json.dumps(recorder.events))
    assert main(["timeline", str(path), "--plot", str(picture)]) == 0
    text = picture.read_text()
    assert "from left to right; longer than shown: 1<" in text
    assert f">...f{'$f' * 32}.json: where" in text


def test_an_ending_that_is_no_pictures_is_one_line(capsys, late: str, tmp_path):
    assert main(["timeline", late, "--plot", str(tmp_path / "out.xyz")]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "out.xyz: cannot be drawn" in err


def test_without_matplotlib_the_picture_says_what_it_needs(capsys, late, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["timeline", late, "--plot", str(tmp_path / "out.svg")]) == 1
    assert "needs matplotlib: pip install 'hvd-autotune[report]'" in capsys.readouterr().err


def test_a_picture_that_cannot_be_written_is_one_line(capsys, late: str) -> None:
    assert main(["timeline", late, "--plot", "/no/such/folder/x.svg"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_names_from_a_file_are_no_markup(capsys, recorder, tmp_path: Path) -> None:
    recorder.operation(["[red]a[/] </text>"], [(0, 0), (1, 1)], [1, 1, 1, 1])
    path = tmp_path / ("long" * 40) / "[bold]<x>&.json"
    path.parent.mkdir()
    path.write_text(json.dumps(recorder.events * 1))
    assert main(["timeline", str(path)]) == 0
    out = capsys.readouterr().out
    assert "[red]a[/] </text>" in out
    assert f"{path}: {len(recorder.events)} events, 2 ranks" in out.splitlines()
