"""The report of one log as one HTML file that needs nothing else."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from autotune.errors import OutputError
from autotune.exact import value_text
from autotune.report import figures, tables, timelines
from autotune.report.explain import Slice, range_text
from autotune.report.needs import needed
from autotune.report.several import Comparison, model_text
from autotune.report.story import Story, state_text
from autotune.report.svg import MARKED, inline
from autotune.report.tables import Table
from autotune.report.timelines import Timelines
from autotune.report.verdict import Kind, percent, share
from autotune.result import setting_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NUMBER_AND_PERCENT = re.compile(r"(?<=\d) (?=%)")
"""The space in "3 %", at which no line may end."""
TITLES = {
    "pairs": "Gain of every pair of windows",
    "changes": "Gain of each change from the default to the setting",
    "slices": "Gain by the value of each parameter",
    "waiting": "What a step computes and waits",
    "history": "Gain of every trial, and the default's step time, against time",
    "gains": "Gain of each log",
    "scaling": "Step time and efficiency by the number of ranks",
    "timelines": "Phases of a step",
}
"""What screen readers call the pictures."""
WORTH_SAYING = 0.005
"""What readings say beyond the surrogate is worth a sentence from here on."""
MUCH = 0.1
"""What cannot be excluded is worth a sentence from here on."""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure of the page with what it shows in words, and the table that holds it."""

    svg: str
    caption: str
    tables: tuple[Table, ...] = ()


def html(story: Story, *, follow_s: float | None = None, lines: Timelines | None = None) -> str:
    """Return the page of one log.

    Args:
        story: What it says.
        lines: Timelines of the job.
        follow_s: Seconds after which an open page reads the file again; None: never.

    Raises:
        OutputError: The extra ``report`` is not installed.
    """
    content = {
        "title": f"autotune report: {os.path.basename(story.path) or story.path}",
        "story": story,
        "verdict": story.verdict,
        "state": state_text(story),
        "follow_s": follow_s,
        "sections": Sections(story),
        "timelines": TimelineSection(lines) if lines is not None else None,
    }
    return render("page.html", content)


def html_of_several(
    comparison: Comparison, *, follow_s: float | None = None, lines: Timelines | None = None
) -> str:
    """Return the page of several logs; arguments as ``html``.

    Raises:
        OutputError: The extra ``report`` is not installed.
    """
    needed("matplotlib", "report")
    found = comparison.scaling
    content = {
        "title": f"autotune report: {len(comparison.stories)} logs",
        "comparison": comparison,
        "follow_s": follow_s,
        "gains": picture(
            "gains",
            figures.draw_gains(comparison, MARKED),
            "The gain of each log over the default of its job, with its interval.",
        ),
        "gains_table": tables.gains(comparison),
        "scaling": found
        and picture(
            "scaling",
            figures.draw_scaling(found, MARKED),
            "Left: a step, its work and C(W) by the model, and what was measured. Right: the "
            "efficiency, with what the middle half of the windows makes of it; dashed: nothing "
            "lost.",
            tables.scaling(found),
        ),
        "scaling_text": model_text(found) if found is not None else "",
        "jobs": [tables.job(story) for story in comparison.stories],
        "timelines": TimelineSection(lines) if lines is not None else None,
    }
    return render("several.html", content)


class TimelineSection:
    """What the template shows of timelines."""

    def __init__(self, lines: Timelines) -> None:
        """Draw them."""
        self.phases = timelines.phases(lines)
        self.picture = picture(
            "timelines",
            timelines.draw(lines, MARKED),
            "Every moment of a step belongs to one phase, the furthest one under way.",
        )
        self.facts = timelines.facts(lines)
        self.files = [
            (name, report.path) for name, report in zip(lines.names, lines.reports, strict=True)
        ]
        self.texts = timelines.texts(lines)


def render(template: str, content: dict[str, Any]) -> str:
    """Return a page.

    Raises:
        OutputError: The extra ``report`` is not installed.
    """
    text: str = _environment().get_template(template).render(content)
    return _NUMBER_AND_PERCENT.sub("\u00a0", text)


@functools.cache
def _environment() -> Any:
    jinja2 = needed("jinja2", "report")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("autotune.report", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"percent": percent, "share": share}
    return environment


def picture(key: str, figure: Figure | None, caption: str, *shown: Table | None) -> Picture | None:
    """Return a figure for a page; None where there is nothing to draw."""
    if figure is None:
        return None
    held = tuple(table for table in shown if table is not None)
    svg = inline(figure, key=key, title=TITLES[key], description=caption)
    return Picture(svg=svg, caption=caption, tables=held)


class Sections:
    """What the template shows, section by section."""

    def __init__(self, story: Story) -> None:
        """Draw the pictures of ``story``.

        Raises:
            OutputError: The extra ``report`` is not installed.
        """
        needed("matplotlib", "report")
        self._story = story
        explanation = story.explanation
        self.setting = tables.setting(story.replay.params) if story.replay else None
        self.pairs = picture(
            "pairs",
            figures.draw_pairs(story, MARKED),
            "Each dot is one pair of windows, read side by side; the dashed line is the default.",
            tables.pairs(story),
        )
        self.pairs_text = _pairs_text(story)
        self.why = self.slices = self.ranges = None
        if explanation is not None:
            self.why = picture(
                "changes",
                figures.draw_changes(explanation, MARKED),
                "From the default downwards, one parameter is changed at a time; each bar is what "
                "that change adds.",
                tables.changes(explanation),
            )
            self.ranges = tables.ranges(explanation)
            self.slices = picture(
                "slices",
                figures.draw_slices(explanation, MARKED, story=story),
                "Line and band: the smooth part of the surrogate's gain over the default with its "
                "90 % interval, all other parameters as in the setting. Dotted: its own value. "
                "Full dots: readings of trials on this slice; hollow dots: of trials that differ "
                "from it in other parameters as well.",
                *tables.slices(explanation),
            )
        self.waiting = picture(
            "waiting",
            figures.draw_waiting(story, MARKED),
            "A training step: its own work, and what it waits for communication. Medians of "
            + (
                "its windows."
                if story.tuned is None
                else "windows that were read side by side; the gain above compares them one by "
                "one, so it may differ from what these medians give."
            ),
            tables.waiting(story),
        )
        self.cost = tables.cost(story)
        self.history = picture(
            "history",
            figures.draw_history(story, MARKED),
            "Above: every trial's gain over the default near it in time, with its 90 % interval, "
            "as the tuner saw it when the trial ended, those near it counted in; of the setting "
            "that is spoken of above it is up to date. "
            "Below: the default's step time, read again between all others.",
            tables.history(story),
            tables.drift(story),
        )
        self.trials = tables.history(story) if story.attempts else None
        self.job = tables.job(story)

    @property
    def why_text(self) -> str:
        """What the ablation is about, in a sentence."""
        story = self._story
        if story.view.best is None:
            return "There is no answer to explain yet."
        if story.explanation is None:
            return self._no_explanation
        other = story.other
        if other is None or not story.explanation.changes:
            return "The default itself is the best that was found: there is nothing to explain."
        default = story.view.trials[0].params
        what = setting_text(other.params, beside=default)
        if story.verdict.kind is Kind.FASTER:
            return f"What makes the tuned setting ({what}) faster than the default:"
        if story.verdict.kind in (Kind.UNFINISHED, Kind.BEYOND_DOUBT):
            return f"What makes the most promising setting ({what}) look faster so far:"
        return (
            f"The default stays, so nothing has to be explained. This is what the best other "
            f"setting ({what}) would change:"
        )

    @property
    def _no_explanation(self) -> str:
        if self._story.view.database is None:
            return "This log holds no gains over the default, so nothing can be explained from it."
        return "Too few settings have a known gain to tell what each parameter does."

    @property
    def rest_text(self) -> str:
        """What the readings say beyond the ablation."""
        explanation = self._story.explanation
        if explanation is None or explanation.rest is None or self.why is None:
            return ""
        if abs(explanation.rest) < WORTH_SAYING:
            return ""
        source = "the comparison in pairs says"
        if self._story.view.certificate is None:
            source = "the readings of the setting itself say"
        return (
            f"The surrogate's changes come to {percent(explanation.changes[-1].total.estimate)}; "
            f"{source} {percent(explanation.rest)} on top of that, which no single parameter "
            "explains. What was read counts."
        )

    @property
    def ranges_text(self) -> str:
        """What does not matter, in a sentence."""
        explanation = self._story.explanation
        if explanation is None:
            return self.why_text if self._story.view.best is None else self._no_explanation
        wide = [one for one in explanation.slices if len(one.inside) > 1]
        parts = []
        if wide:
            ranges = "; ".join(f"{one.parameter.word} {range_text(one)}" for one in wide)
            parts.append(f"Within these ranges less than 1 % is expected to change: {ranges}.")
        sure = [one for one in explanation.slices if one.matters and one.is_sure]
        open_ = [one for one in explanation.slices if one.matters and not one.is_sure]
        if sure:
            parts.append(f"Expected to change something: {_farthest(sure)}.")
        if open_:
            parts.append(f"Not told apart from nothing by these readings: {_farthest(open_)}.")
        widest = max((abs(end) for one in wide for end in one.bounds), default=0.0)
        if widest > MUCH:
            parts.append(
                "These readings are too noisy to be sure: what the ranges may change nevertheless "
                "stands in the table."
            )
        if self._story.verdict.kind is Kind.NOT_PROVEN:
            parts.append("The comparison in pairs, which is surer, has not proven any of it.")
        default = self._story.view.trials[0].params
        where = "default" if explanation.around == default else "setting that is spoken of above"
        return f"Around the {where}: {' '.join(parts)}"

    @property
    def doubt_text(self) -> str:
        """Why a gain cannot be communication's alone: it is more than there was to wait for."""
        gain, headroom = self._story.verdict.gain, self._story.headroom
        if gain is None or gain.estimate <= headroom + WORTH_SAYING:
            return ""
        return (
            f"The gain that is spoken of above, {percent(gain.estimate)}, is more than that: a "
            "part of it is noise of the machine, or computation that communication slows less now, "
            "or work beside it that became less."
        )

    @property
    def cost_text(self) -> str:
        """What tuning cost, in a sentence."""
        cost = self._story.cost
        if cost is None:
            return ""
        price = cost.price
        if not price.other_steps:
            return "Nothing: only the default was read."
        if price.lost_us <= 0:
            return "Nothing: the settings that were tried were, taken together, no slower."
        lost = (
            f"Tuning has lost {tables.duration(price.lost_us / 1e6)} so far, {share(price.share)}"
        )
        if self._story.view.finished:
            lost = f"Tuning lost {tables.duration(price.lost_us / 1e6)}, {share(price.share)}"
        lost += f" of the {price.steps:,} steps that were read."
        if cost.break_even is None:
            return lost
        return f"{lost} It is made up for after {tables.steps_text(cost.break_even)}."

    @property
    def drift_text(self) -> str:
        """How steady the machine was."""
        curve = self._story.drift
        if curve is None:
            return ""
        if len(curve.step_us) < 2:
            return "The default was read once only, so its drift is not known."
        return (
            f"From the beginning to the end of the run the default's step time changed by "
            f"{percent(curve.drift)}; its slowest moment took {1 + curve.spread:.2f} times as long "
            "as its fastest. Every setting is compared with the default near it in time: what "
            "changes slowly is in no gain, the rest makes the intervals wider."
        )


def _pairs_text(story: Story) -> str:
    """Return how far a comparison is that has not ended."""
    if not story.pairs or story.compared is None or story.verdict.compared:
        return ""
    gains = sorted(pair.gain for pair in story.pairs)
    what = setting_text(story.compared.params, beside=story.view.trials[0].params)
    pairs = f"{len(gains)} pair{'s' if len(gains) > 1 else ''}"
    return (
        f"The comparison of {what} with the default has begun: {pairs} so far, median gain "
        f"{percent(median(gains))} ({percent(gains[0])} to {percent(gains[-1])})."
    )


def _farthest(slices: Sequence[Slice]) -> str:
    """Return of each parameter the value that is expected to change most, and by how much."""
    return "; ".join(
        f"{value_text(one.parameter, one.farthest.value)} "
        f"({percent(one.farthest.difference.estimate)})"
        for one in slices
        if one.farthest is not None
    )


def write(path: str, text: str) -> None:
    """Put a page at ``path`` atomically: a browser that reads meanwhile sees the old one, whole.

    Raises:
        OutputError: It cannot be written.
    """
    folder = os.path.dirname(os.path.abspath(path))
    try:
        if os.path.isdir(path):
            raise OutputError(f"{path}: is a folder: name a file, such as report.html")
        if os.path.exists(path) and not os.path.isfile(path):  # /dev/stdout
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            return
        _replace(path, folder, text)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise OutputError(f"{path}: the report cannot be written ({why})") from None


def _replace(path: str, folder: str, text: str) -> None:
    fd, new = tempfile.mkstemp(prefix=".report-", suffix=".html", dir=folder)
    try:
        with open(fd, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
        os.chmod(new, _mode(path))
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise


def _mode(path: str) -> int:
    """Return the mode that a file at ``path`` has, or a new one would get."""
    with contextlib.suppress(OSError):
        return os.stat(path).st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
