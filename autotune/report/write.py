"""``autotune report``: from logs to a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autotune.errors import LogError
from autotune.report import page
from autotune.report.changed import wait_for
from autotune.report.follow import follow
from autotune.report.several import compare
from autotune.report.story import Story, read_story
from autotune.report.timelines import Timelines, read_timelines


def report(
    paths: Sequence[str],
    output: str,
    *,
    timelines: Sequence[str] = (),
    follow_s: float | None = None,
    began: Callable[[], None] = lambda: None,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[str, ...]:
    """Write a page about one log, or one that compares several.

    Args:
        paths: The logs.
        output: The file.
        timelines: Timelines of the job: one, or before and after.
        follow_s: Write it anew while the job runs, with so many seconds from one look at its log to
            the next, until it has ended; None: write it once. The logs need not be there yet.
        began: Is called when the file is there for the first time.
        say: Is told what this waits for.

    Returns:
        Sentences for people, from reading the logs.

    Raises:
        LogError: A log cannot be read, or is none.
        TimelineError: A timeline cannot be read, or is none.
        OutputError: The file cannot be written, or the extra ``report`` is not installed.
    """
    lines = read_timelines(timelines) if timelines else None
    stories: list[Story] = []

    def rewrite(again_s: float | None) -> bool:
        try:
            stories[:] = [read_story(path, explains=len(paths) == 1) for path in paths]
        except LogError:
            if again_s is not None or not stories:
                raise
            # The last page says what was read at last.
        page.write(output, _text(stories, lines, again_s))
        return all(story.view.finished for story in stories)

    for path in paths if follow_s is not None else ():
        wait_for(path, say)
    rewrite(None)
    began()
    if follow_s is not None and not all(story.view.finished for story in stories):
        follow(paths, rewrite, every_s=follow_s)
    return tuple(dict.fromkeys(text for story in stories for text in story.warnings))


def _text(stories: Sequence[Story], lines: Timelines | None, follow_s: float | None) -> str:
    if len(stories) == 1:
        return page.html(stories[0], follow_s=follow_s, lines=lines)
    return page.html_of_several(compare(stories), follow_s=follow_s, lines=lines)
