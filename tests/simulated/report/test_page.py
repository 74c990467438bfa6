from __future__ import annotations

import os
import re
import stat
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from autotune.cli.main import main
from autotune.errors import OutputError
from autotune.report import figures, tables
from autotune.report.page import Sections, html, write
from autotune.report.story import Story

QUESTIONS = ("faster", "run", "why", "no-matter", "time", "cost")
VOID = {"meta", "link", "br", "img", "path", "use"}


class Reader(HTMLParser):
    """Checks that tags are balanced; keeps ids, links and what would be requested."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.requests: list[str] = []
        self.headings: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = {name: value or "" for name, value in attrs}
        if tag not in VOID:
            self.open.append(tag)
        if "id" in known:
            self.ids.append(known["id"])
        if tag == "h2":
            self.headings.append(known["id"])
        if tag == "a":
            self.links.append(known["href"])
        for name in ("src", "srcset", "action", "data", "poster", "xlink:href"):
            if name in known:
                self.requests.append(known[name])
        if tag in ("link", "use", "image") and "href" in known:
            self.requests.append(known["href"])

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()


@pytest.fixture(scope="session")
def pages(stories: dict[str, Story]) -> dict[str, str]:
    return {name: html(story) for name, story in stories.items()}


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    return reader


NAMES = ("gain", "no gain", "nothing", "unfinished", "no database", "empty", "one rank", "horovod")


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_whole_small_and_asks_for_nothing(pages: dict[str, str], name: str) -> None:
    page = pages[name]
    found = read(page)
    assert found.open == []
    assert len(found.ids) == len(set(found.ids))
    assert {link[1:] for link in found.links} <= set(found.ids)
    assert all(one.startswith(("#", "data:")) for one in found.requests)
    assert not re.search(r"url\((?!#)|@import|https?://(?!www\.w3\.org)", page)
    assert len(page.encode()) < 1_000_000


@pytest.mark.parametrize("name", NAMES)
def test_six_questions_come_first_and_in_order(pages: dict[str, str], name: str) -> None:
    headings = [heading.removesuffix("-title") for heading in read(pages[name]).headings]
    assert tuple(headings[:6]) == QUESTIONS


def test_what_a_user_named_cannot_become_markup(stories: dict[str, Story]) -> None:
    from dataclasses import replace

    evil = "<script>alert(1)</script>&\"'"
    page = html(replace(stories["horovod"], path=evil, warnings=(evil,)))
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page


def test_text_in_pictures_is_text_and_colours_are_the_style_sheets(pages: dict[str, str]) -> None:
    pictures = re.findall(r"<svg.*?</svg>", pages["gain"], re.DOTALL)
    assert len(pictures) == 5
    for one in pictures:
        assert "<text" in one and "<title" in one and "<desc" in one
        assert not re.search(r"#[0-9a-f]{6}", one)
        assert not re.search(r"DejaVu|Bitstream", one)


def test_everything_that_is_drawn_is_in_a_table(stories: dict[str, Story]) -> None:
    story = stories["gain"]
    sections = Sections(story)
    drawn = (sections.pairs, sections.why, sections.waiting, sections.history, sections.slices)
    assert all(picture is not None and picture.tables for picture in drawn)
    pairs, history, drift = tables.pairs(story), tables.history(story), tables.drift(story)
    assert pairs is not None and len(pairs.rows) == len(story.pairs)
    assert len(history.rows) == len(story.attempts)
    assert drift is not None and story.drift is not None
    assert len(drift.rows) >= min(len(story.drift.step_us), 30)
    assert story.explanation is not None
    for table, one in zip(tables.slices(story.explanation), story.explanation.slices, strict=True):
        assert len(table.rows) == len(one.places)


def test_rows_have_as_many_cells_as_the_header(stories: dict[str, Story]) -> None:
    for story in stories.values():
        sections = Sections(story)
        shown = [sections.setting, sections.ranges, sections.cost, sections.trials, sections.job]
        for picture in vars(sections).values():
            shown += getattr(picture, "tables", ())
        for table in shown:
            if table is not None:
                assert {len(row) for row in table.rows} <= {len(table.header)}, table.caption


def test_figures_are_drawn_without_a_page_too(stories: dict[str, Story]) -> None:
    story = stories["gain"]
    assert story.explanation is not None
    drawn = [
        figures.draw_pairs(story),
        figures.draw_changes(story.explanation),
        figures.draw_slices(story.explanation, story=story),
        figures.draw_waiting(story),
        figures.draw_history(story),
    ]
    assert all(figure is not None and figure.axes for figure in drawn)


def test_an_unfinished_log_says_so_where_it_answers(pages: dict[str, str]) -> None:
    page = pages["unfinished"]
    assert "not certified yet" in page and "Tuning has not finished" in page


def test_a_job_that_read_only_the_default_lost_nothing(stories: dict[str, Story]) -> None:
    sections = Sections(stories["nothing"])
    assert sections.cost_text == "Nothing: only the default was read."
    assert sections.waiting is not None and "the gain above" not in sections.waiting.caption


def test_a_page_is_written_whole_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write(str(path), "one")
    os.chmod(path, 0o640)
    write(str(path), "two")
    assert path.read_text() == "two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["report.html"]


@pytest.mark.parametrize("where", ["", "missing/report.html", "file/report.html", "a\0b"])
def test_a_page_that_cannot_be_written_is_one_sentence(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError) as caught:
        write(f"{tmp_path}/{where}", "page")
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)


def test_the_command_prints_the_file_it_wrote(capsys, tmp_path: Path, logs) -> None:
    path = tmp_path / "page.html"
    assert main(["report", logs["unfinished"], "-o", str(path)]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == (f"{path}\n", "")
    assert path.read_text().startswith("<!doctype html>")


def test_the_command_says_in_one_sentence_what_is_wrong(capsys, tmp_path: Path, logs) -> None:
    assert main(["report", str(tmp_path / "none.csv")]) == 1
    assert main(["report", logs["empty"], "-o", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 2


@pytest.mark.parametrize("module", ["matplotlib", "jinja2"])
def test_a_missing_extra_is_one_sentence(capsys, monkeypatch, tmp_path, logs, module) -> None:
    from autotune.report import page

    page._environment.cache_clear()
    monkeypatch.setitem(sys.modules, module, None)
    assert main(["report", logs["empty"], "-o", str(tmp_path / "page.html")]) == 1
    assert "pip install 'hvd-autotune[report]'" in capsys.readouterr().err


def test_a_gain_that_is_more_than_there_is_to_wait_for_is_doubted(
    stories: dict[str, Story],
) -> None:
    from dataclasses import replace

    story = stories["gain"]
    assert story.default is not None and Sections(story).doubt_text == ""
    waits_little = replace(story, default=replace(story.default, share=0.06))
    assert "is more than that" in Sections(waits_little).doubt_text
