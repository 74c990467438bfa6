from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.cli.main import main
from autotune.report import tables
from autotune.report.evidence import Waiting
from autotune.report.several import answer_text, compare, scale, short_names
from autotune.report.story import Story
from autotune.report.timelines import facts, phases, read_timelines

DATA = Path(__file__).parents[2] / "data"
TIMELINES = [str(path) for path in sorted(DATA.glob("horovod-*-timeline-*.json"))]


def on_ranks(story: Story, ranks: int, step_us: float, wait_us: float) -> Story:
    """Return the story of the same job on other ranks."""
    assert story.view.run is not None
    step = Waiting(
        step_us=step_us,
        step_low_us=0.99 * step_us,
        step_high_us=1.01 * step_us,
        exposed_us=wait_us,
        share=wait_us / step_us,
        share_low=0.0,
        share_high=1.0,
        windows=3,
    )
    run = replace(story.view.run, size=ranks)
    return replace(story, view=replace(story.view, run=run), default=step, tuned=step)


def test_a_job_whose_ranks_share_the_work_is_fitted(stories: dict[str, Story]) -> None:
    waits = {2: 500.0, 4: 900.0, 8: 1300.0}
    made = [on_ranks(stories["gain"], w, 80_000 / w + c, c) for w, c in waits.items()]
    found, _ = scale(made)
    assert found is not None and found.is_shared
    assert found.work_us == pytest.approx(80_000) and found.slope == pytest.approx(-1)
    assert [point.communication_us for point in found.points] == pytest.approx([*waits.values()])
    assert found.points[0].efficiency == 1.0
    four = found.points[1]
    assert four.speed_up == pytest.approx(40_500 / 20_900)
    assert four.efficiency == pytest.approx(four.speed_up / 2)


def test_a_job_with_a_batch_for_each_rank_is_fitted(stories: dict[str, Story]) -> None:
    made = [on_ranks(stories["gain"], w, 40_000 + 1000 * w, 1000 * w) for w in (2, 4, 8)]
    found, _ = scale(made)
    assert found is not None and not found.is_shared
    assert found.work_us == pytest.approx(40_000)
    assert found.points[2].speed_up == pytest.approx(4 * 42_000 / 48_000)
    assert found.points[2].efficiency == pytest.approx(42_000 / 48_000)


def test_a_fit_that_holds_has_no_doubts(stories: dict[str, Story]) -> None:
    made = [on_ranks(stories["gain"], w, 40_000 + 1000 * w, 1000 * w) for w in (2, 4, 8)]
    found, _ = scale(made)
    assert found is not None and found.is_clear and found.doubts == ()
    for point in found.points[1:]:
        assert point.efficiency_low < point.efficiency < point.efficiency_high


def test_two_points_are_said_to_prove_nothing(stories: dict[str, Story]) -> None:
    found, _ = scale([on_ranks(stories["gain"], w, 40_000, 1000) for w in (2, 4)])
    assert found is not None
    assert [text.startswith("Two numbers of ranks") for text in found.doubts] == [True]


def test_more_than_ranks_can_give_is_said(stories: dict[str, Story]) -> None:
    steps = {2: 40_000, 4: 36_000, 8: 40_000}
    found, _ = scale([on_ranks(stories["gain"], w, t, 1000) for w, t in steps.items()])
    assert found is not None
    efficiency, short = found.doubts
    assert efficiency.startswith("111.1 % on 4 ranks is more than ranks can give")
    assert short.startswith("On 4 ranks a step takes less than the model's work alone")


def test_work_that_follows_neither_model_is_said(stories: dict[str, Story]) -> None:
    steps = {2: 40_000, 4: 80_000, 8: 160_000}
    found, _ = scale([on_ranks(stories["gain"], w, t, 0) for w, t in steps.items()])
    assert found is not None and not found.is_clear
    assert "to the power of +1.00" in found.doubts[0] and "share cores" in found.doubts[0]


def test_equal_ranks_or_other_jobs_do_not_scale(stories: dict[str, Story]) -> None:
    gain = stories["gain"]
    found, why = scale([gain, gain])
    assert found is None and "different numbers of ranks" in why
    other = replace(on_ranks(gain, 8, 1e5, 1e3), payload_bytes=1)
    found, why = scale([gain, other])
    assert found is None and "different tensors" in why


def test_every_log_has_its_row_whatever_it_is(stories: dict[str, Story]) -> None:
    found = compare(list(stories.values()))
    table = tables.gains(found)
    assert len(table.rows) == len(stories) == len(set(found.names))
    assert {len(row) for row in table.rows} == {len(table.header)}
    assert answer_text(stories["no gain"]) == "the default"
    assert answer_text(stories["empty"]) == "none yet"


def test_names_are_as_short_as_they_can_be() -> None:
    assert short_names(["/a/x/log.csv", "/a/y/log.csv"]) == ("x/log.csv", "y/log.csv")
    assert short_names(["/a/one.csv", "/b/two.csv"]) == ("one.csv", "two.csv")
    assert short_names(["/a/one.csv", "/a/one.csv"]) == ("one.csv", "one.csv")


def test_several_logs_make_one_page(capsys, tmp_path: Path, logs: dict[str, str]) -> None:
    page = tmp_path / "page.html"
    arguments = ["report", *logs.values(), "-o", str(page), "--timeline", *TIMELINES]
    assert main(arguments) == 0
    text = page.read_text()
    for path in logs.values():
        assert Path(path).parent.name in text or Path(path).name in text
    assert "By timelines" in text and len(text.encode()) < 1_000_000
    assert capsys.readouterr().out == f"{page}\n"


def test_phases_of_two_timelines_are_side_by_side() -> None:
    lines = read_timelines(TIMELINES)
    table, about = phases(lines), facts(lines)
    assert table.header == ("phase", "before", "after", "factor")
    assert [row[0] for row in table.rows][-1] == "step"
    assert "slowest rank" in [row[0] for row in about.rows]
    assert all(row[1].startswith("rank ") for row in about.rows if row[0] == "slowest rank")


def test_a_file_that_is_no_timeline_is_one_sentence(capsys, tmp_path: Path, logs) -> None:
    page = tmp_path / "page.html"
    assert main(["report", logs["gain"], "-o", str(page), "--timeline", logs["gain"]]) == 1
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1 and not page.exists()
