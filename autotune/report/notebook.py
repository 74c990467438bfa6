"""A log in a notebook: its verdict, frames of pandas, and the report's figures."""

from __future__ import annotations

import html
import io
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from autotune.errors import NoAnswerError
from autotune.report import figures
from autotune.report.explain import Explanation
from autotune.report.needs import needed
from autotune.report.story import Story, read_story
from autotune.storage.readings import KINDS, NO_PAIR, read_readings
from autotune.trial import Gain

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


def load(path: str) -> Log:
    """Read a log for a notebook: what ``autotune report`` shows, as frames and figures.

    Args:
        path: CSV log (ours or of any Horovod release), SQLite log, or folder of SQLite logs.

    Raises:
        LogError: It cannot be read, or is no autotune log.
    """
    return Log(read_story(path))


class Log:
    """One log. In a notebook it shows its verdict.

    Frames need pandas and figures matplotlib: ``pip install 'hvd-autotune[notebook]'``; without
    them an ``OutputError`` says so. Gains are relative (0.01: one percent), times in microseconds.

    Attributes:
        story: All that the log says, as values.
    """

    def __init__(self, story: Story) -> None:
        """Hold what was read; ``load`` reads it."""
        self.story = story

    def __repr__(self) -> str:
        verdict = self.story.verdict
        return f"<autotune log {self.story.path}: {verdict.answer}. {verdict.text}>"

    def _repr_html_(self) -> str:
        verdict, path = self.story.verdict, html.escape(self.story.path)
        return (
            f"<p><code>{path}</code><br><strong>{html.escape(verdict.answer)}.</strong> "
            f"{html.escape(verdict.text)}</p>"
        )

    # ---- frames ---------------------------------------------------------------------------------

    @cached_property
    def trials(self) -> DataFrame:
        """One row per trial: the setting, state, score, gain with its interval, end in seconds."""
        return _frame(
            {
                "trial": one.trial.trial_id,
                **one.trial.params.as_dict(),
                "state": str(one.trial.state),
                "score": one.trial.score,
                **_gain("gain", one.trial.gain),
                "ended_s": one.at_s,
                "windows": one.windows,
            }
            for one in self.story.attempts
        )

    @cached_property
    def samples(self) -> DataFrame:
        """One row per reading: a window of training steps under one setting.

        Raises:
            LogError: The database cannot be read.
        """
        view = self.story.view
        if view.database is None or view.run is None:
            return _frame([])
        found = read_readings(view.database, view.run.run_id)
        pairs = [None if pair == NO_PAIR else pair for pair in found.pair]
        columns: dict[str, Any] = {
            "trial": found.trial_id,
            "kind": [str(KINDS[kind]) for kind in found.kind],
            "pair": pairs,
            "steps": found.steps,
            "duration_us": found.duration_us,
            "payload_bytes": found.payload_bytes,
            "exposed_us": found.exposed_us,
            "score": found.score,
        }
        frame = needed("pandas", "notebook").DataFrame(
            {name: list(values) for name, values in columns.items()}
        )
        frame["step_us"] = frame["duration_us"] / frame["steps"].where(frame["steps"] > 0)
        ends = needed("pandas", "notebook").to_datetime(list(found.finished_s), unit="s", utc=True)
        frame["finished_at"] = ends
        return frame

    @cached_property
    def pairs(self) -> DataFrame:
        """One row per pair of the comparison."""
        return _frame(vars(pair) for pair in self.story.pairs)

    @cached_property
    def ablation(self) -> DataFrame:
        """From the default to the setting, one parameter a row, or such that were never apart."""
        return _frame(
            {
                "parameter": ", ".join(part.parameter.name for part in one.parts),
                "before": one.parts[0].before if len(one.parts) == 1 else one.before_text,
                "after": one.parts[0].after if len(one.parts) == 1 else one.after_text,
                **_gain("gain", one.gain),
                **_gain("total", one.total),
                "read": None if one.read is None else one.read.estimate,
            }
            for one in self._explanation.changes
        )

    @cached_property
    def slices(self) -> DataFrame:
        """How each parameter acts around the setting: one row per parameter and value."""
        return _frame(
            {
                "parameter": one.parameter.name,
                "value": place.value,
                "is_setting": place.value == one.at,
                "does_not_matter": place in one.inside,
                **_gain("gain", place.over_default),
                **_gain("difference", place.difference),
            }
            for one in self._explanation.slices
            for place in one.places
        )

    # ---- figures --------------------------------------------------------------------------------

    def plot_pairs(self) -> Figure:
        """Draw every pair of the comparison."""
        return self._figure("pairs", figures.draw_pairs)

    def plot_ablation(self) -> Figure:
        """Draw what each change from the default to the setting adds."""
        return self._figure("changes", lambda _: figures.draw_changes(self._explanation))

    def plot_slices(self) -> Figure:
        """Draw how each parameter acts around the setting."""

        def draw(story: Story) -> Figure:
            return figures.draw_slices(self._explanation, story=story)

        return self._figure("slices", draw)

    def plot_waiting(self) -> Figure:
        """Draw what a training step waits for communication."""
        return self._figure("waiting", figures.draw_waiting)

    def plot_history(self) -> Figure:
        """Draw the trials against time, with the default's step time under them."""
        return self._figure("history", figures.draw_history)

    @property
    def _explanation(self) -> Explanation:
        explanation = self.story.explanation
        if explanation is None:
            raise NoAnswerError(f"{self.story.path}: holds too few gains to explain anything")
        return explanation

    def _figure(self, what: str, draw: Callable[[Story], Figure | None]) -> Figure:
        needed("matplotlib", "notebook")
        figure = draw(self.story)
        if figure is None:
            raise NoAnswerError(f"{self.story.path}: holds no {what} to draw")
        figure._repr_svg_ = lambda: _svg(figure)  # type: ignore[attr-defined]
        return figure


def _svg(figure: Figure) -> str:
    file = io.StringIO()
    figure.savefig(file, format="svg", facecolor="white")
    return file.getvalue()


def _frame(rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    frame: DataFrame = needed("pandas", "notebook").DataFrame(list(map(dict, rows)))
    return frame


def _gain(name: str, gain: Gain | None) -> dict[str, float | None]:
    ends = (None, None, None) if gain is None else (gain.estimate, gain.low, gain.high)
    return dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))
